//! The end of a start, from the decided outcome until every run is dead; and the end of the job.

use std::time::Duration;

use protocol::ids::Generation;
use protocol::run_policy::CleanPods;
use protocol::view::JobResult;

use super::halt::{self, Halt};
use super::stop::{Stop, evaluates, grace, limit};
use super::verdict::{conclude, has_live_run, judge, regroup};
use super::{Action, Ending, JobEvent, JobPhase, PodSelection, Seen, suspension};
use crate::diagnosis::fingerprint;
use crate::gang::Place;
use crate::observation::{PodDeletion, Presence};
use crate::policy::RELEASE_TIMEOUT;

pub(super) fn stopping(stop: Stop, event: JobEvent, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now, .. } = seen;
    // After a takeover, this master may discover a run only now.
    let generation = stop.generation.max(gang.newest_generation());
    let stop = if generation > stop.generation { of_newer_start(stop) } else { stop };
    let evaluates_until = match event {
        JobEvent::CancelWished => stop.evaluates_until.min(now),
        JobEvent::Observed => stop.evaluates_until,
    };
    let stop = Stop { evaluates_until, ..stop };
    if has_unended_run(seen) || generation != stop.generation {
        let given = grace(&stop.ending, seen);
        // A run that was asked to stop earlier may have a longer grace period.
        let grace = stop.grace.max(given);
        let asked_at = if evaluates(gang) { evaluates_until } else { stop.since };
        let overdue = now >= asked_at + limit(grace);
        let actions =
            if overdue { vec![Action::DeletePods(PodSelection::Unended)] } else { vec![stop.action(given, seen)] };
        let next = stop.next.max(generation.map_or(stop.next, Generation::next));
        let stop = Stop { generation, horizon: generation.or(stop.horizon), next, grace, ..stop };
        return (JobPhase::Stopping(stop), actions);
    }
    match stop.ending {
        Ending::Succeeded => conclude(JobResult::Succeeded, seen),
        Ending::Cancelled => conclude(JobResult::Cancelled, seen),
        // When one replica succeeds, other replicas may fail. A master that takes over may observe that failure first.
        Ending::Failed(_) | Ending::Regroup | Ending::Suspended if policy.rules.success.is_met(gang) => {
            conclude(JobResult::Succeeded, seen)
        }
        Ending::Regroup => regroup(stop.next, seen),
        Ending::Suspended => suspension::enter(stop.next),
        Ending::Failed(known) => {
            let failure = gang.cause(known);
            let halt = generation.and_then(|generation| Halt::after(&failure, generation, stop.next, seen));
            let fingerprint = fingerprint(&failure, gang);
            halt.map_or_else(|| judge(failure, fingerprint.as_ref(), stop.next, seen), |halt| halt::enter(halt, seen))
        }
    }
}

/// The stop after an agent has reported a newer start than the one that is being stopped. An earlier master began the
/// newer start, so that master has dealt with the failure of the older start.
fn of_newer_start(stop: Stop) -> Stop {
    match (stop.generation, &stop.ending) {
        (Some(_), Ending::Failed(_)) => Stop { ending: Ending::Regroup, ..stop },
        (_, _) => stop,
    }
}

fn has_unended_run(seen: Seen<'_>) -> bool {
    // A silent agent may have a run, and may know the first failure. Wait for the agent's report. If this master
    // created the agent's pod, the replica is not a member, so do not wait for this agent.
    let may_be_told = seen.is_taken_over() && seen.gang.any_place(Place::may_have_unknown_run);
    has_live_run(seen.gang) || may_be_told
}

pub(super) fn releasing(result: JobResult, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now, .. } = seen;
    if policy.rules.clean_pods == CleanPods::None || !gang.any_place(is_to_be_released) {
        return (JobPhase::Finished { result }, vec![]);
    }
    let overdue = now >= since + RELEASE_TIMEOUT;
    // A pod may have appeared only now, because its creation was still in progress.
    let action = if overdue { Action::DeletePods(PodSelection::Live) } else { Action::ReleasePods };
    (JobPhase::Releasing { result, since }, vec![action])
}

/// Whether the end of the job waits for the replica's pod. If the agent has ended and the pod is being deleted, the job
/// does not wait for the other containers.
fn is_to_be_released(place: &Place<'_>) -> bool {
    match place.seen.presence() {
        Presence::Live => true,
        Presence::Occupied => place.seen.deletion == PodDeletion::NotAsked,
        Presence::Absent | Presence::Ended => false,
    }
}

/// A pod that was requested earlier may appear after the job's end, so every event checks for pods again.
pub(super) fn finished(result: JobResult, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let which = match seen.policy.rules.clean_pods {
        CleanPods::All => PodSelection::All,
        CleanPods::Running => PodSelection::Live,
        CleanPods::None => PodSelection::Idle,
    };
    let has_any = seen.gang.any_place(|place| which.includes(place, seen.gang));
    let actions = if has_any { vec![Action::DeletePods(which)] } else { vec![] };
    (JobPhase::Finished { result }, actions)
}
