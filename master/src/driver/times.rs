//! The times at which a job reached its phases.

use job::phase::{Attempt, JobPhase, StartStage};
use protocol::ids::{Generation, UnixMillis};
use protocol::view::JobTimes;

/// The launches of the job's runs.
pub(super) struct Launches {
    /// Whether this master has seen each start of the job, because it is the job's first master.
    pub(super) are_all_seen: bool,
    /// Whether every exec.py of the newest start was started.
    pub(super) are_complete: bool,
    /// When the last exec.py of the newest start was started, if every agent has reported the time.
    pub(super) last: Option<UnixMillis>,
}

impl Launches {
    /// When the last exec.py of the newest start was started, if this is known when the job enters the phase `after` at
    /// `now`.
    pub(super) fn started(&self, (before, after): (&JobPhase, &JobPhase), now: UnixMillis) -> Option<UnixMillis> {
        let was_starting = matches!(before, JobPhase::Starting { .. });
        if matches!(after, JobPhase::Running { .. }) {
            // A master that takes over a running gang learns the time from the agents.
            return if was_starting { Some(now) } else { self.last };
        }
        let has_started = was_starting && self.are_complete && matches!(after, JobPhase::Stopping { .. });
        has_started.then_some(now)
    }
}

/// Stores when the phase `after` is entered. For most phases, only the first entry is stored. A halt, a suspension or a
/// restart clears the end time. The next phase clears the time of a halt.
///
/// A later master of the job leaves out the times of earlier steps that no agent reports. It cannot know whether its
/// first start is the job's first start.
pub(super) fn reach(
    times: &mut JobTimes,
    (before, after): (&JobPhase, &JobPhase),
    launches: &Launches,
    now: UnixMillis,
) {
    let stamp = |time: &mut Option<UnixMillis>| *time = time.or(Some(now));
    let stamp_first = |time: &mut Option<UnixMillis>| *time = time.or(launches.are_all_seen.then_some(now));
    let started = launches.started((before, after), now);
    times.halted = None;
    match after {
        JobPhase::Pending { .. } | JobPhase::Queued { .. } => {}
        // A halted job enters `Releasing` without `Stopping`, so it has no end time yet.
        JobPhase::Releasing { .. } => stamp(&mut times.ended),
        JobPhase::Halted { .. } => (times.halted, times.ended) = (Some(now), None),
        JobPhase::Restarting { .. } | JobPhase::Suspended { .. } => times.ended = None,
        JobPhase::Starting(Attempt { stage: StartStage::Configuring, .. }) => stamp_first(&mut times.joined),
        JobPhase::Starting(Attempt { stage: StartStage::Launching, .. }) => stamp_first(&mut times.configured),
        JobPhase::Running { generation, .. } => run(times, launches, *generation, started),
        JobPhase::Stopping { .. } => {
            if let (JobPhase::Starting(Attempt { generation, .. }), Some(_)) = (before, started) {
                run(times, launches, *generation, started);
            }
            times.ended = Some(now);
        }
        JobPhase::Finished { .. } => stamp(&mut times.finished),
    }
}

/// The job's first start under its first master.
const FIRST: Generation = Generation { epoch: 1, sequence: 1 };

/// Stores when every exec.py of this start was started, if the time is known.
fn run(times: &mut JobTimes, launches: &Launches, generation: Generation, at: Option<UnixMillis>) {
    let has_run = times.started.is_some() || times.restarted.is_some();
    if !has_run && (launches.are_all_seen || generation == FIRST) {
        times.started = at;
    } else {
        times.restarted = at;
    }
}
