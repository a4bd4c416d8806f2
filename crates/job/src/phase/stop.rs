//! Stops the runs of a start whose outcome is decided.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::{Generation, Role};

use super::{Action, Ending, Halt, JobPhase, Restart, Seen};
use crate::gang::{Gang, HelperUse, Place, has_left, is_disruption};
use crate::policy::{Budget, RELEASE_TIMEOUT, STOP_GRACE};
use crate::replica::ReplicaPhase;

/// See [`JobPhase::Stopping`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The start that is being stopped; `None` if there was none.
    pub generation: Option<Generation>,
    /// The oldest generation whose runs belong to this start. Older runs are ignored, because their starts have ended.
    /// `None`: no run is ignored.
    pub horizon: Option<Generation>,
    /// The number of the next start, if the job restarts.
    pub next: Generation,
    /// The outcome.
    pub ending: Ending,
    /// When stopping began.
    pub since: Duration,
    /// When a running evaluator is stopped too: later than the others only after a success.
    pub evaluates_until: Duration,
    /// The longest time between SIGTERM and SIGKILL that a run of this start may have been given.
    pub grace: Duration,
}

/// Stops the runs of this phase. `ending` is the outcome of the start.
pub(super) fn stop(phase: &JobPhase, ending: Ending, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let generation = phase.generation().or_else(|| seen.gang.newest_generation());
    let grace = grace(&ending, seen);
    let (horizon, next) = (generation.or(phase.horizon()), next_start(phase, generation, seen.epoch));
    let evaluates_until = evaluates_until(&ending, seen);
    let stop = Stop { generation, horizon, next, ending, since: seen.now, evaluates_until, grace };
    let action = stop.action(grace, seen);
    (JobPhase::Stopping(stop), vec![action])
}

/// The end of the evaluator's grace. The deadline of the job ends it too.
fn evaluates_until(ending: &Ending, seen: Seen<'_>) -> Duration {
    let Seen { policy, now, .. } = seen;
    let given = if *ending == Ending::Succeeded { policy.rules.graces.evaluator } else { Duration::ZERO };
    policy.wishes.deadline.map_or(now + given, |deadline| (now + given).min(deadline.at.max(now)))
}

impl Stop {
    /// Asks the runs to stop that may not go on.
    pub(super) fn action(&self, grace: Duration, seen: Seen<'_>) -> Action {
        if seen.now < self.evaluates_until && evaluates(seen.gang) {
            return Action::StopTraining { grace };
        }
        Action::StopRuns { grace }
    }
}

/// Whether an evaluator still runs.
pub(super) fn evaluates(gang: &Gang<'_>) -> bool {
    gang.any(|member| member.id.role == Role::Evaluator && matches!(member.phase, ReplicaPhase::Running(_)))
}

/// Stops a start that has failed.
pub(super) fn fail(phase: &JobPhase, failure: Failure, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    stop(phase, Ending::Failed(failure), seen)
}

/// The number of the start after this phase. This number is higher than every number that an agent has received.
fn next_start(phase: &JobPhase, generation: Option<Generation>, epoch: u32) -> Generation {
    let planned = match phase {
        JobPhase::Pending { gathering, .. } | JobPhase::Queued { gathering, .. } => gathering.next,
        JobPhase::Restarting(Restart { next, .. })
        | JobPhase::Stopping(Stop { next, .. })
        | JobPhase::Halted(Halt { next, .. })
        | JobPhase::Suspended { next } => *next,
        JobPhase::Starting { .. }
        | JobPhase::Running { .. }
        | JobPhase::Releasing { .. }
        | JobPhase::Finished { .. } => Generation { epoch, sequence: 1 },
    };
    planned.max(generation.map_or(planned, Generation::next))
}

/// Time between SIGTERM and SIGKILL. While a pod is evicted, all members have time to save, because the next start waits
/// for that pod anyway. A failed gang also has this time if scripts asked for a restart that does not count. After every
/// other failure the grace is 0: without the failed member, the other TensorFlow processes only hang or end slowly. A
/// gang that regroups or is suspended has time to save if all scripts use the helper. These scripts save and exit by
/// themselves.
pub(super) fn grace(ending: &Ending, seen: Seen<'_>) -> Duration {
    let Seen { gang, policy, .. } = seen;
    let all_save = gang.any(|_| true) && !gang.any(|member| lacks_helper(member, gang));
    let saving = if all_save { policy.rules.graces.saving } else { policy.rules.graces.leaving };
    match ending {
        Ending::Failed(_) | Ending::Regroup | Ending::Suspended if gang.any(Place::may_still_save) => saving,
        Ending::Failed(lost) if is_disruption(lost) && may_save_already(seen) => saving,
        Ending::Regroup | Ending::Suspended if may_save_already(seen) => saving,
        // When scripts have asked for a restart, the first rank may still be saving the state.
        Ending::Failed(failure) if is_free_leave(failure, seen) => saving,
        Ending::Failed(_) => Duration::ZERO,
        Ending::Regroup | Ending::Suspended if all_save => saving,
        Ending::Succeeded => policy.rules.graces.success,
        Ending::Cancelled => policy.rules.graces.cancel,
        Ending::Regroup | Ending::Suspended => STOP_GRACE,
    }
}

/// Time from a stop request to the deletion of a pod whose run has not ended: the longest `grace` that a run may have
/// been given, plus time to report the end.
pub(super) fn limit(grace: Duration) -> Duration {
    grace + RELEASE_TIMEOUT
}

/// Whether an earlier master has begun to stop the runs. During an eviction, that master gave the runs time to save, and
/// the evicted pod may have ended since. An agent that already has a grace period ignores a new period that would end
/// later.
fn may_save_already(seen: Seen<'_>) -> bool {
    seen.is_taken_over() && seen.gang.any(|member| member.is_stopping())
}

fn is_free_leave(failure: &Failure, seen: Seen<'_>) -> bool {
    has_left(failure) && seen.policy.budget_of(failure, seen.gang.helper_of(failure)) == Some(Budget::Free)
}

/// Whether the member may run a script that does not exit by itself after a step. All members of a role complete a step
/// together. So if another member of the role has reported a step, only this member's report is late.
fn lacks_helper(member: &Place<'_>, gang: &Gang<'_>) -> bool {
    let has_stepped = |other: &Place<'_>| other.id.role == member.id.role && other.helper() == HelperUse::Stepped;
    let may_run = !member.phase.is_dead() || member.may_still_save();
    may_run && member.helper() == HelperUse::None && !gang.any(has_stepped)
}
