//! The script of a job has failed. The job keeps its pods and waits for new code before the failure is judged.

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
    /// The wait for new code after this failure; `None` if the job does not wait. If the code of the failed script is no
    /// longer the newest, the wait ends at once.
    pub(super) fn after(failure: &Failure, generation: Generation, next: Generation, seen: Seen<'_>) -> Option<Self> {
        let Seen { gang, policy, now, .. } = seen;
        let wait = policy.wait_after(failure, gang.helper_of(failure))?;
        // Evaluators do not know the number.
        let pushes = gang.pushes_of(failure).or_else(|| gang.pushes_in(generation));
        Some(Self {
            generation,
            next,
            failure: failure.clone(),
            pushes: pushes.unwrap_or(policy.pushes),
            until: now + wait,
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
