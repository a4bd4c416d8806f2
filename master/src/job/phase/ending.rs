//! From the decision how a start of the gang ends to the next start, or to a job of which nothing runs any more.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::Generation;
use protocol::run_policy::CleanPods;
use protocol::view::JobResult;

use super::gathering::Restart;
use super::{Action, Ending, JobPhase, Seen, Which};
use crate::job::gang::Gang;
use crate::job::policy::Verdict;
use crate::job::replica::{Presence, ReplicaPhase};

/// See [`JobPhase::Stopping`].
#[derive(Debug, Clone)]
pub(super) struct Stop {
    pub(super) generation: Option<Generation>,
    pub(super) next: Generation,
    pub(super) ending: Ending,
    pub(super) since: Duration,
}

impl From<Stop> for JobPhase {
    fn from(Stop { generation, next, ending, since }: Stop) -> Self {
        Self::Stopping { generation, next, ending, since }
    }
}

/// Ends what a phase has begun.
pub(super) fn stop(phase: &JobPhase, ending: Ending, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let generation = phase.generation().or_else(|| seen.gang.newest_generation());
    let actions = stop_actions(generation, grace(&ending, seen));
    (Stop { generation, next: next_start(phase, generation, seen.epoch), ending, since: seen.now }.into(), actions)
}

/// TensorFlow's other members hang or die slowly once one is lost, so there is nothing to wait for.
pub(super) fn fail(phase: &JobPhase, failure: Failure, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    stop(phase, Ending::Failed(failure), seen)
}

/// What a start after this phase will be numbered: higher than every one that an agent has heard of.
fn next_start(phase: &JobPhase, generation: Option<Generation>, epoch: u32) -> Generation {
    let planned = match phase {
        JobPhase::Pending { gathering, .. } => gathering.next,
        JobPhase::Restarting { next, .. } | JobPhase::Stopping { next, .. } => *next,
        JobPhase::Starting { .. }
        | JobPhase::Running { .. }
        | JobPhase::Releasing { .. }
        | JobPhase::Finished { .. } => Generation { epoch, sequence: 1 },
    };
    planned.max(generation.map_or(planned, Generation::next))
}

fn grace(ending: &Ending, seen: Seen<'_>) -> Duration {
    match ending {
        Ending::Failed(_) => Duration::ZERO,
        Ending::Succeeded | Ending::Cancelled => seen.policy.stop_grace,
    }
}

fn stop_actions(generation: Option<Generation>, grace: Duration) -> Vec<Action> {
    Vec::from_iter(generation.map(Action::Follow).into_iter().chain([Action::StopRuns { grace }]))
}

pub(super) fn stopping(stop: Stop, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now, .. } = seen;
    if has_unended_run(gang, stop.generation) {
        let overdue = now >= stop.since + policy.stop_grace + policy.release_timeout;
        // A master that takes over may hear of a run only now.
        let generation = stop.generation.or(gang.newest_generation());
        let actions = if overdue {
            vec![Action::DeletePods(Which::Live)]
        } else {
            stop_actions(generation, grace(&stop.ending, seen))
        };
        return (Stop { generation, ..stop }.into(), actions);
    }
    match stop.ending {
        Ending::Succeeded => conclude(JobResult::Succeeded, seen),
        Ending::Cancelled => conclude(JobResult::Cancelled, seen),
        Ending::Failed(known) => judge(gang.cause(known), stop.next, seen),
    }
}

fn has_unended_run(gang: &Gang, generation: Option<Generation>) -> bool {
    // One that is only configured may have been told to run by a request whose answer was lost.
    let may_run = gang.any(|member| member.phase.was_configured() && !member.phase.is_dead());
    // A master that takes over has to hear of every run, for the first failure may be the one it hears of last.
    may_run || generation.is_some() && gang.any(|member| member.phase == ReplicaPhase::Scheduled)
}

/// Every run of a start that failed is dead: the gang begins again, or the job has failed.
fn judge(failure: Failure, next: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let (without, pause) = match seen.policy.verdict(&failure, seen.restarts) {
        Verdict::Restart { pause, .. } => (Which::Unfit, pause),
        Verdict::Requeue { pause } => (Which::All, pause),
        Verdict::GiveUp => return conclude(JobResult::Failed { failure }, seen),
    };
    let until = seen.now + pause;
    let restart = Restart { next, without, until, since: until };
    (restart.into(), vec![Action::MakeUpFor(failure), Action::DeletePods(without)])
}

fn conclude(result: JobResult, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let concluded = Action::Conclude(result.clone());
    match seen.policy.clean_pods {
        CleanPods::None => (JobPhase::Finished { result }, vec![concluded]),
        CleanPods::Running | CleanPods::All => {
            (JobPhase::Releasing { result, since: seen.now }, vec![concluded, Action::ReleasePods])
        }
    }
}

pub(super) fn releasing(result: JobResult, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now, .. } = seen;
    if !gang.any(|member| member.pod == Presence::Live) {
        return (JobPhase::Finished { result }, vec![]);
    }
    let overdue = now >= since + policy.release_timeout;
    // One that was being created may have come up only now.
    let action = if overdue { Action::DeletePods(Which::Live) } else { Action::ReleasePods };
    (JobPhase::Releasing { result, since }, vec![action])
}

/// A pod that was asked for may come up after the end.
pub(super) fn finished(result: JobResult, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let has = |presence: Presence| seen.gang.any(|member| member.pod == presence);
    let actions = match seen.policy.clean_pods {
        CleanPods::All if has(Presence::Live) || has(Presence::Ended) => vec![Action::DeletePods(Which::All)],
        CleanPods::Running if has(Presence::Live) => vec![Action::DeletePods(Which::Live)],
        CleanPods::All | CleanPods::Running | CleanPods::None => vec![],
    };
    (JobPhase::Finished { result }, actions)
}
