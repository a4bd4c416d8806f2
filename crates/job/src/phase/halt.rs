//! The wait for new code after the script of a job has failed. The job keeps its pods. If no new code arrives, the
//! failure is judged at the end of the wait.

use std::time::Duration;

use protocol::failure::{Failure, Fingerprint};
use protocol::ids::Generation;

use super::verdict::{has_live_run, judge, regroup};
use super::{Action, JobPhase, PodSelection, Seen};
use crate::diagnosis::fingerprint;
use crate::gang::Place;
use crate::policy::{Policy, RELEASE_TIMEOUT};

/// See [`JobPhase::Halted`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// The start that has failed.
    pub generation: Generation,
    /// The number of the next start.
    pub next: Generation,
    /// The failure, which is judged when the wait ends without new code.
    pub failure: Failure,
    /// Identifies the failure. By the end of the wait, the pods that reported the failure may be lost.
    pub fingerprint: Option<Fingerprint>,
    /// How often a user had pushed new code when the failed script was started.
    pub pushes: u32,
    /// When the wait ends, as the time since the job's driver began.
    pub until: Duration,
}

impl Halt {
    /// Whether a user has pushed new code since the failed script was started.
    pub fn has_new_code(&self, policy: &Policy) -> bool {
        policy.wishes.pushes > self.pushes
    }

    /// The wait for new code after this failure; `None` if the job does not wait.
    pub(super) fn after(failure: &Failure, generation: Generation, next: Generation, seen: Seen<'_>) -> Option<Self> {
        let Seen { gang, policy, now, .. } = seen;
        let wait = policy.wait_after(failure, gang.helper_of(failure))?;
        // If the failed replica is not a member any more, another member knows how often a user had pushed.
        let pushes = gang.pushes_of(failure).or_else(|| gang.pushes_in(generation));
        Some(Self {
            generation,
            next,
            failure: failure.clone(),
            fingerprint: fingerprint(failure, gang),
            pushes: pushes.unwrap_or(policy.wishes.pushes),
            until: now + wait,
        })
    }
}

/// Halts the job. Every run is dead. If newer code has arrived already, the next step restarts the gang, so nothing is
/// recorded.
pub(super) fn enter(halt: Halt, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let actions = if halt.has_new_code(seen.policy) { vec![] } else { vec![Action::RecordHalt] };
    (JobPhase::Halted(halt), actions)
}

pub(super) fn halted(halt: Halt, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let has_new_code = halt.has_new_code(seen.policy);
    let is_over = (seen.now >= halt.until || seen.overdue().is_some()) && !awaits_reports(seen);
    // An agent that did not answer for some time may still have a run.
    if has_live_run(seen.gang) {
        let unended = Action::DeletePods(PodSelection::Unended);
        let action = if has_new_code || is_over { unended } else { Action::StopRuns { grace: Duration::ZERO } };
        return (JobPhase::Halted(halt), vec![action]);
    }
    if has_new_code {
        return regroup(halt.next, seen);
    }
    if is_over {
        judge(halt.failure, halt.fingerprint.as_ref(), halt.next, seen)
    } else {
        (JobPhase::Halted(halt), vec![])
    }
}

/// Whether to wait for silent agents, which may still report how their runs ended. Only a new driver waits for them,
/// until [`RELEASE_TIMEOUT`] after the driver began.
fn awaits_reports(seen: Seen<'_>) -> bool {
    seen.now < RELEASE_TIMEOUT && seen.gang.any_place(Place::is_silent)
}
