//! The script of a job has failed. Before the failure is judged, the job waits for new code, in the pods that it has.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::Generation;

use super::elastic::regroup;
use super::ending::{fail, has_live_run, judge};
use super::running::overdue;
use super::{Action, JobPhase, Seen};

/// See [`JobPhase::Halted`].
#[derive(Debug, Clone)]
pub(super) struct Halt {
    pub(super) generation: Generation,
    pub(super) next: Generation,
    pub(super) failure: Failure,
    pub(super) pushes: u32,
    pub(super) until: Duration,
}

impl From<Halt> for JobPhase {
    fn from(Halt { generation, next, failure, pushes, until }: Halt) -> Self {
        Self::Halted { generation, next, failure, pushes, until }
    }
}

impl Halt {
    /// The wait for new code after this failure, if the job waits. Code that came after the start began ends the wait at once.
    pub(super) fn after(failure: &Failure, generation: Generation, next: Generation, seen: Seen<'_>) -> Option<Self> {
        let wait = seen.policy.wait_after(failure, seen.gang.helper_of(failure))?;
        Some(Self {
            generation,
            next,
            failure: failure.clone(),
            pushes: seen.gang.pushes_in(generation).unwrap_or(seen.policy.pushes),
            until: seen.now + wait,
        })
    }
}

pub(super) fn halted(halt: Halt, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    if has_live_run(seen.gang) {
        let failure = halt.failure.clone();
        return fail(&halt.into(), failure, seen);
    }
    if seen.policy.pushes > halt.pushes {
        return regroup(halt.next, seen);
    }
    let is_over = seen.now >= halt.until || overdue(seen).is_some();
    if is_over { judge(halt.failure, halt.next, seen) } else { (halt.into(), vec![]) }
}
