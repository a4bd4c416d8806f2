//! The times at which a job reached its phases.

use protocol::ids::UnixMillis;
use protocol::view::JobTimes;

use crate::job::phase::{JobPhase, StartStage};

/// The launches of the gang's runs.
pub(super) struct Launches {
    /// Whether every exec.py was started.
    pub(super) are_complete: bool,
    /// When the last exec.py was started, if every agent has reported the time.
    pub(super) last: Option<UnixMillis>,
}

/// Stores when the phase `after` is entered. For most phases, only the first entry is stored. A halt, a suspension or a
/// restart clears the end time. The next phase clears the time of a halt.
pub(super) fn reach(
    times: &mut JobTimes,
    (before, after): (&JobPhase, &JobPhase),
    launches: &Launches,
    now: UnixMillis,
) {
    let stamp = |time: &mut Option<UnixMillis>| *time = time.or(Some(now));
    times.halted = None;
    match after {
        JobPhase::Pending { .. } | JobPhase::Queued { .. } => {}
        // A halted job enters `Releasing` without `Stopping`, so it has no end time yet.
        JobPhase::Releasing { .. } => stamp(&mut times.ended),
        JobPhase::Halted { .. } => (times.halted, times.ended) = (Some(now), None),
        JobPhase::Restarting { .. } | JobPhase::Suspended { .. } => times.ended = None,
        JobPhase::Starting { stage: StartStage::Configuring, .. } => stamp(&mut times.joined),
        JobPhase::Starting { stage: StartStage::Launching, .. } => stamp(&mut times.configured),
        JobPhase::Running { .. } => {
            // A master that takes over a running gang learns the time from the agents.
            let earlier = launches.last.filter(|_| !matches!(before, JobPhase::Starting { .. }));
            run(times, earlier.unwrap_or(now));
        }
        JobPhase::Stopping { .. } => {
            if matches!(before, JobPhase::Starting { .. }) && launches.are_complete {
                run(times, now);
            }
            times.ended = Some(now);
        }
        JobPhase::Finished { .. } => stamp(&mut times.finished),
    }
}

/// Records that every exec.py was started at this time.
fn run(times: &mut JobTimes, at: UnixMillis) {
    match times.started {
        None => times.started = Some(at),
        Some(_) => times.restarted = Some(at),
    }
}
