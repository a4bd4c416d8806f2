//! What follows a start whose runs are all dead: another start, or the end of the job.

use std::time::Duration;

use protocol::failure::{Failure, Fingerprint};
use protocol::ids::Generation;
use protocol::run_policy::CleanPods;
use protocol::view::JobResult;

use super::{Action, JobPhase, PodSelection, Seen};
use crate::alone::has_used_up;
use crate::gang::Gang;
use crate::policy::{Budget, Verdict};

/// Whether a member's exec.py may be alive. A configured agent may have received the request to run even if its answer
/// was lost.
pub(super) fn has_live_run(gang: &Gang<'_>) -> bool {
    gang.any(|member| member.phase.was_configured() && !member.phase.is_dead())
}

/// See [`JobPhase::Restarting`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// The number of the next start.
    pub next: Generation,
    /// Whether the next start begins without the pods of this start.
    pub is_empty: bool,
    /// When the pause ends.
    pub until: Duration,
    /// When the gang began, or will begin, to gather. The start timeout begins at this time.
    pub since: Duration,
}

/// Gathers the next gang at once. Nothing is recorded: a new master learns of the earlier start from the agents.
pub(super) fn regroup(next: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let restart = Restart { next, is_empty: false, until: seen.now, since: seen.now };
    (JobPhase::Restarting(restart), vec![])
}

/// Decides whether the job restarts or fails. Every run of the failed start is dead.
pub(super) fn judge(
    failure: Failure,
    fingerprint: Option<&Fingerprint>,
    next: Generation,
    seen: Seen<'_>,
) -> (JobPhase, Vec<Action>) {
    let too_large = seen.gang.too_large();
    if too_large.iter().any(|batch| batch.possible.is_some()) {
        return conclude(JobResult::Failed { failure }, seen);
    }
    // With a smaller batch, the next start may come further.
    let is_same =
        too_large.is_empty() && fingerprint.is_some_and(|one| seen.policy.would_fail_again(one, seen.restarts));
    // The evaluator has started again alone as often as it may. Training again from the last checkpoint does not help it.
    let is_used_up = seen.gang.failed(&failure).is_some_and(|member| has_used_up(member, seen.policy));
    let (is_empty, pause) = match seen.policy.verdict(&failure, seen.gang.helper_of(&failure), seen.restarts) {
        Verdict::Restart { budget: Budget::Counted, .. } if is_same || is_used_up => {
            return conclude(JobResult::Failed { failure }, seen);
        }
        Verdict::Restart { budget: Budget::Free, .. } if !seen.policy.is_fixed() => return regroup(next, seen),
        Verdict::Restart { pause, .. } => (false, pause),
        Verdict::Requeue { pause } => (true, pause),
        Verdict::GiveUp => return conclude(JobResult::Failed { failure }, seen),
    };
    let until = seen.now + pause;
    let restart = Restart { next, is_empty, until, since: until };
    let record = Action::RecordRestart(failure);
    // In other restarts, `Action::Keep` replaces the pods that cannot serve the next start.
    let actions = if is_empty { vec![record, Action::DeletePods(PodSelection::All)] } else { vec![record] };
    (JobPhase::Restarting(restart), actions)
}

pub(super) fn conclude(result: JobResult, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let concluded = Action::Conclude(result.clone());
    let release = match seen.policy.rules.clean_pods {
        CleanPods::None => Action::DeletePods(PodSelection::Idle),
        CleanPods::Running | CleanPods::All => Action::ReleasePods,
    };
    (JobPhase::Releasing { result, since: seen.now }, vec![concluded, release])
}
