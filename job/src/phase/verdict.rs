//! What follows a start whose runs are all dead: another start, or the end of the job.

use std::time::Duration;

use protocol::failure::{Failure, Fingerprint};
use protocol::ids::Generation;
use protocol::run_policy::CleanPods;
use protocol::view::JobResult;

use super::{Action, JobPhase, PodSelection, Seen};
use crate::gang::Gang;
use crate::policy::{Budget, Verdict};

/// Whether a member's exec.py may be alive. A configured agent may have received the request to run even if its answer
/// was lost.
pub(super) fn has_live_run(gang: &Gang) -> bool {
    gang.any(|member| member.phase.was_configured() && !member.phase.is_dead())
}

/// See [`JobPhase::Restarting`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Restart {
    pub(super) next: Generation,
    pub(super) without: PodSelection,
    pub(super) until: Duration,
    pub(super) since: Duration,
}

impl From<Restart> for JobPhase {
    fn from(Restart { next, without, until, since }: Restart) -> Self {
        Self::Restarting { next, without, until, since }
    }
}

/// Gathers the next gang at once. Nothing is recorded: a new master learns of the earlier start from the agents.
pub(super) fn regroup(next: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let restart = Restart { next, without: PodSelection::Unfit, until: seen.now, since: seen.now };
    (restart.into(), vec![])
}

/// Decides whether the job restarts or fails. Every run of the failed start is dead.
pub(super) fn judge(
    failure: Failure,
    fingerprint: Option<&Fingerprint>,
    next: Generation,
    seen: Seen<'_>,
) -> (JobPhase, Vec<Action>) {
    let is_same = fingerprint.is_some_and(|one| seen.policy.would_fail_again(one, seen.restarts));
    let (without, pause) = match seen.policy.verdict(&failure, seen.gang.helper_of(&failure), seen.restarts) {
        Verdict::Restart { budget: Budget::Counted, .. } if is_same => {
            return conclude(JobResult::Failed { failure }, seen);
        }
        Verdict::Restart { budget: Budget::Free, .. } if seen.policy.elastic.is_some() => return regroup(next, seen),
        Verdict::Restart { pause, .. } => (PodSelection::Unfit, pause),
        Verdict::Requeue { pause } => (PodSelection::All, pause),
        Verdict::GiveUp => return conclude(JobResult::Failed { failure }, seen),
    };
    let until = seen.now + pause;
    let restart = Restart { next, without, until, since: until };
    let mut actions = vec![Action::RecordRestart(failure)];
    // `Action::Keep` replaces the pods of an elastic job.
    if seen.policy.elastic.is_none() || without == PodSelection::All {
        actions.push(Action::DeletePods(without));
    }
    (restart.into(), actions)
}

pub(super) fn conclude(result: JobResult, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let concluded = Action::Conclude(result.clone());
    let release = match seen.policy.clean_pods {
        CleanPods::None => Action::DeletePods(PodSelection::Idle),
        CleanPods::Running | CleanPods::All => Action::ReleasePods,
    };
    (JobPhase::Releasing { result, since: seen.now }, vec![concluded, release])
}
