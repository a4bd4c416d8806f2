//! The end of a start: from the decided outcome to the next start, or to the end of the job.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::Generation;
use protocol::run_policy::CleanPods;
use protocol::view::JobResult;

use super::elastic::regroup;
use super::gathering::Restart;
use super::halt::{self, Halt};
use super::{Action, Ending, JobPhase, PodSelection, Seen, suspension};
use crate::job::gang::{Gang, HelperUse, Member, has_left};
use crate::job::observation::Presence;
use crate::job::policy::{Budget, Verdict};

/// See [`JobPhase::Stopping`].
#[derive(Debug, Clone)]
pub(super) struct Stop {
    pub(super) generation: Option<Generation>,
    pub(super) horizon: Option<Generation>,
    pub(super) next: Generation,
    pub(super) ending: Ending,
    pub(super) since: Duration,
}

impl From<Stop> for JobPhase {
    fn from(Stop { generation, horizon, next, ending, since }: Stop) -> Self {
        Self::Stopping { generation, horizon, next, ending, since }
    }
}

/// Stops the runs of this phase. `ending` is the outcome of the start.
pub(super) fn stop(phase: &JobPhase, ending: Ending, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let generation = phase.generation().or_else(|| seen.gang.newest_generation());
    let actions = vec![Action::StopRuns { grace: grace(&ending, seen) }];
    let next = next_start(phase, generation, seen.epoch);
    (Stop { generation, horizon: generation.or(phase.horizon()), next, ending, since: seen.now }.into(), actions)
}

/// Stops a start that has failed.
pub(super) fn fail(phase: &JobPhase, failure: Failure, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    stop(phase, Ending::Failed(failure), seen)
}

/// The number of the start after this phase. This number is higher than every number that an agent has received.
fn next_start(phase: &JobPhase, generation: Option<Generation>, epoch: u32) -> Generation {
    let planned = match phase {
        JobPhase::Pending { gathering, .. } => gathering.next,
        JobPhase::Restarting { next, .. }
        | JobPhase::Stopping { next, .. }
        | JobPhase::Halted(Halt { next, .. })
        | JobPhase::Suspended { next } => *next,
        JobPhase::Starting { .. }
        | JobPhase::Running { .. }
        | JobPhase::Releasing { .. }
        | JobPhase::Finished { .. } => Generation { epoch, sequence: 1 },
    };
    planned.max(generation.map_or(planned, Generation::next))
}

/// Time between SIGTERM and SIGKILL. During an eviction, the other members have time to save their state, because the
/// next start waits for the evicted pod anyway. If all scripts use the helper, a gang that regroups or is suspended
/// has the same time: these scripts leave together after a step. After other failures the grace is 0: without the
/// failed member, the other TensorFlow processes only hang or end slowly.
fn grace(ending: &Ending, seen: Seen<'_>) -> Duration {
    match ending {
        Ending::Failed(_) | Ending::Regroup | Ending::Suspended if seen.gang.any(Member::is_leaving) => {
            seen.policy.leaving_grace
        }
        // After scripts have left, the first rank may still save the state.
        Ending::Failed(failure) if is_free_leave(failure, seen) => seen.policy.leaving_grace,
        Ending::Failed(_) => Duration::ZERO,
        Ending::Regroup | Ending::Suspended if !seen.gang.any(|member| lacks_helper(member, seen.gang)) => {
            seen.policy.leaving_grace
        }
        Ending::Succeeded => seen.policy.success_grace,
        Ending::Cancelled | Ending::Regroup | Ending::Suspended => seen.policy.stop_grace,
    }
}

fn is_free_leave(failure: &Failure, seen: Seen<'_>) -> bool {
    has_left(failure) && seen.policy.budget_of(failure, seen.gang.helper_of(failure)) == Some(Budget::Free)
}

/// Whether the member may run a script that does not leave by itself after a step. All members of a role complete a
/// step together. So if another member of the role has reported a step, only this member's report is late.
fn lacks_helper(member: &Member, gang: &Gang) -> bool {
    let has_stepped = |other: &Member| other.id.role == member.id.role && other.place.helper == HelperUse::Stepped;
    !member.phase.is_dead() && member.place.helper == HelperUse::None && !gang.any(has_stepped)
}

pub(super) fn stopping(stop: Stop, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now, .. } = seen;
    // After a takeover, this master may discover a run only now.
    let generation = stop.generation.or(gang.newest_generation());
    if has_unended_run(generation, seen) || generation != stop.generation {
        let overdue = now >= stop.since + policy.stop_limit();
        let actions = if overdue {
            vec![Action::DeletePods(PodSelection::Unended)]
        } else {
            vec![Action::StopRuns { grace: grace(&stop.ending, seen) }]
        };
        let next = stop.next.max(generation.map_or(stop.next, Generation::next));
        return (Stop { generation, horizon: generation.or(stop.horizon), next, ..stop }.into(), actions);
    }
    match stop.ending {
        Ending::Succeeded => conclude(JobResult::Succeeded, seen),
        Ending::Cancelled => conclude(JobResult::Cancelled, seen),
        // When one replica succeeds, other replicas may fail. A master that takes over may observe that failure first.
        Ending::Failed(_) | Ending::Regroup | Ending::Suspended if policy.success.is_met(gang) => {
            conclude(JobResult::Succeeded, seen)
        }
        Ending::Regroup => regroup(stop.next, seen),
        Ending::Suspended => suspension::enter(stop.next),
        Ending::Failed(known) => {
            let failure = gang.cause(known);
            let halt = generation.and_then(|generation| Halt::after(&failure, generation, stop.next, seen));
            halt.map_or_else(|| judge(failure, stop.next, seen), |halt| halt::enter(halt, seen))
        }
    }
}

fn has_unended_run(generation: Option<Generation>, seen: Seen<'_>) -> bool {
    // A silent agent may have a run, and may know the first failure.
    // If this job may have runs at all, wait for the agent's report.
    let may_be_told = match seen.policy.elastic {
        // A replica that is not a member does not delay the end of a start.
        Some(_) => seen.is_taken_over() && seen.gang.any_place(|place| place.is_silent() && place.place.may_run),
        None => (generation.is_some() || seen.is_taken_over()) && seen.gang.any(Member::is_silent),
    };
    has_live_run(seen.gang) || may_be_told
}

/// Whether a member's exec.py may be alive. A configured agent may have received the request to run even if its answer
/// was lost.
pub(super) fn has_live_run(gang: &Gang) -> bool {
    gang.any(|member| member.phase.was_configured() && !member.phase.is_dead())
}

/// Decides whether the job restarts or fails. Every run of the failed start is dead.
pub(super) fn judge(failure: Failure, next: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let (without, pause) = match seen.policy.verdict(&failure, seen.gang.helper_of(&failure), seen.restarts) {
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

fn conclude(result: JobResult, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let concluded = Action::Conclude(result.clone());
    let release = match seen.policy.clean_pods {
        CleanPods::None => Action::DeletePods(PodSelection::Idle),
        CleanPods::Running | CleanPods::All => Action::ReleasePods,
    };
    (JobPhase::Releasing { result, since: seen.now }, vec![concluded, release])
}

pub(super) fn releasing(result: JobResult, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now, .. } = seen;
    if policy.clean_pods == CleanPods::None || !gang.any_place(|place| place.pod == Presence::Live) {
        return (JobPhase::Finished { result }, vec![]);
    }
    let overdue = now >= since + policy.release_timeout;
    // A pod may have appeared only now, because its creation was still in progress.
    let action = if overdue { Action::DeletePods(PodSelection::Live) } else { Action::ReleasePods };
    (JobPhase::Releasing { result, since }, vec![action])
}

/// A pod that was requested earlier may appear after the job's end, so every event checks for pods again.
pub(super) fn finished(result: JobResult, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let has = |presence: Presence| seen.gang.any_place(|place| place.pod == presence);
    let actions = match seen.policy.clean_pods {
        CleanPods::All if has(Presence::Live) || has(Presence::Ended) => vec![Action::DeletePods(PodSelection::All)],
        CleanPods::Running if has(Presence::Live) => vec![Action::DeletePods(PodSelection::Live)],
        CleanPods::None if seen.gang.any_place(Member::is_idle) => vec![Action::DeletePods(PodSelection::Idle)],
        CleanPods::All | CleanPods::Running | CleanPods::None => vec![],
    };
    (JobPhase::Finished { result }, actions)
}
