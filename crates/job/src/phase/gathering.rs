//! Gathers and starts a gang, for the first start and for each restart.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::Generation;
use protocol::lease::Standing;

use super::running::running;
use super::stop::{fail, stop};
use super::verdict::{has_live_run, regroup};
use super::{Action, Ending, Gathering, JobPhase, PodSelection, Restart, Seen, StartStage, queue};
use crate::alone::{first_failure, returns_alone};
use crate::gang::{Place, is_disruption};
use crate::observation::{PodDeletion, Presence};
use crate::replica::ReplicaPhase;
use crate::roster::{Choice, choose, is_ready, last_start, wanted};

pub(super) fn pending(gathering: Gathering, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let (gathering, since) = queue::at_gate(gathering, since, seen);
    let phase = JobPhase::Pending { gathering, since };
    if let Some(failure) = seen.overdue() {
        return fail(&phase, failure, seen);
    }
    // In `Pending`, a start in which exec.py ran is always a start of an earlier master.
    if let Some(generation) = seen.gang.newest_launch() {
        return resume(generation, phase, seen);
    }
    // An agent that has not answered yet may already run exec.py, and then the start continues.
    let is_known = !seen.gang.any_place(Place::may_have_unknown_run);
    if seen.is_taken_over() && is_known && must_stop_first(seen) {
        return stop(&phase, Ending::Regroup, seen);
    }
    match choose(seen.gang, seen.policy, gathering.ready_since, seen.now) {
        Choice::Start(roster) => {
            let generation = gathering.next;
            let (phase, mut actions) = start(generation, StartStage::Configuring, seen);
            actions.insert(0, Action::Enrol { generation, roster });
            (phase, actions)
        }
        Choice::Wait { ready_since } => {
            if let Some(queued) = queue::enter(gathering, seen) {
                return queued;
            }
            if let Some(failure) = why_it_cannot_start(gathering, since, seen) {
                return fail(&phase, failure, seen);
            }
            (JobPhase::Pending { gathering: Gathering { ready_since, ..gathering }, since }, vec![])
        }
    }
}

/// Whether runs must end before the members of the next start are chosen.
fn must_stop_first(seen: Seen<'_>) -> bool {
    let gang = seen.gang;
    // A late request of an earlier master has begun an older start. The replica's pod is replaced after the stop.
    let runs_older = |place: &Place<'_>| !gang.has(place) && place.phase.was_launched() && !place.phase.is_dead();
    let is_split = gang.newest_generation().is_some() && gang.any_place(runs_older);
    // An earlier master may have asked a configured agent to run exec.py. That request may still take effect. In a fixed
    // gang, each agent takes part in the next start too, and then refuses this request.
    is_split || !seen.policy.is_fixed() && has_live_run(gang)
}

/// Continues the start that an earlier master began, if all its members are known.
fn resume(generation: Generation, phase: JobPhase, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let gang = seen.gang;
    let is_whole = gang.is_whole();
    // Every agent of that start was configured before the first run began.
    let is_to_come = |member: &Place<'_>| !member.phase.was_launched() && !returns_alone(member, gang, seen.policy);
    if is_whole && gang.any(is_to_come) && first_failure(gang, seen.policy).is_none() {
        return start(generation, StartStage::Launching, seen);
    }
    if is_whole || seen.policy.rules.success.is_met(gang) {
        return running(generation, seen.now, seen);
    }
    // A replica in which exec.py may still run may be the missing member. Wait for the replica's agent. In a fixed
    // gang, a failed agent means that a member is lost.
    let is_lost = |place: &Place<'_>| {
        seen.policy.is_fixed() && place.phase.is_lost() && place.seen.agent.standing() == Standing::Held
    };
    if gang.any_place(|place| !gang.has(place) && place.seen.may_run() && !is_lost(place)) {
        return (phase, vec![]);
    }
    let begun = JobPhase::Running { generation, since: seen.now };
    match gang.missing() {
        Some(lost) if seen.policy.is_fixed() => fail(&begun, lost, seen),
        Some(_) | None => stop(&begun, Ending::Regroup, seen),
    }
}

/// Why the gang cannot become complete; `None` if it still can.
fn why_it_cannot_start(gathering: Gathering, since: Duration, seen: Seen<'_>) -> Option<Failure> {
    let Seen { gang, policy, now, .. } = seen;
    // An elastic gang can start without this replica.
    let is_fatal = policy.is_fixed() || last_start(gang).is_none() && !gang.any_place(Place::has_joined);
    // A pod that this master deletes is surplus. The record may already contain the loss of a pod of an earlier start.
    let is_left = |place: &Place<'_>| place.seen.is_found && gathering.horizon.is_some();
    let is_old = |place: &Place<'_>| (place.seen.enrolment().is_some() || is_left(place)) && !place.is_hopeless();
    let is_own =
        |place: &&Place<'_>| place.seen.deletion == PodDeletion::NotAsked && !is_old(place) && place.phase.is_lost();
    let mut failures = gang.places().iter().filter(is_own).filter_map(Place::failure);
    if is_fatal && let Some(broken) = failures.find(|failure| !is_disruption(failure)) {
        return Some(broken);
    }
    // While a run of an earlier start may be alive, the start timeout does not apply to an elastic job: the job waits for
    // that run's end.
    let waits_for_run = !policy.is_fixed() && gang.any_place(|place| place.seen.may_run());
    let is_late = now >= since + policy.rules.start_timeout && !gathering.is_held_back && !waits_for_run;
    is_late.then(|| {
        let wanted = wanted(gang, policy.wishes.workers);
        let is_needed = |place: &Place<'_>| wanted.iter().any(|wanted| wanted.id == place.id);
        let has_come = |place: &Place<'_>| is_ready(place) && !place.seen.may_run();
        gang.start_timeout(policy.rules.start_timeout, |place| has_come(place) || !is_needed(place))
    })
}

pub(super) fn start(generation: Generation, stage: StartStage, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let action = match stage {
        StartStage::Configuring => Action::Configure(generation),
        StartStage::Launching => Action::Launch(generation),
    };
    let attempt = Attempt { generation, stage, since: seen.now, pushes: seen.policy.wishes.pushes };
    (JobPhase::Starting(attempt), vec![action])
}

/// See [`JobPhase::Starting`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The number of this start.
    pub generation: Generation,
    /// The stage of this start.
    pub stage: StartStage,
    /// When this stage began.
    pub since: Duration,
    /// How many times a user had pushed new code when this stage began.
    pub pushes: u32,
}

pub(super) fn starting(attempt: Attempt, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Attempt { generation, stage, since, pushes } = attempt;
    let Seen { gang, policy, now, .. } = seen;
    let phase = JobPhase::Starting(attempt);
    let is_to_come = |member: &Place<'_>| !member.phase.was_launched() && !returns_alone(member, gang, policy);
    if stage == StartStage::Launching && !gang.any(is_to_come) {
        return running(generation, seen.now, seen);
    }
    if let Some(failure) = first_failure(gang, policy).or_else(|| seen.overdue()) {
        if is_replaceable(stage, &failure, seen) {
            return regroup(generation.next(), seen);
        }
        return fail(&phase, failure, seen);
    }
    // No exec.py runs yet. The earlier code may be lost, and then this start would wait for it.
    if stage == StartStage::Configuring && policy.wishes.pushes > pushes {
        return regroup(generation.next(), seen);
    }
    if stage == StartStage::Configuring && gang.all(ReplicaPhase::was_configured) {
        return start(generation, StartStage::Launching, seen);
    }
    if now >= since + policy.rules.start_timeout {
        let has_come = |member: &Place<'_>| match stage {
            StartStage::Configuring => member.phase.was_configured(),
            StartStage::Launching => member.phase.was_launched(),
        };
        return fail(&phase, gang.start_timeout(policy.rules.start_timeout, has_come), seen);
    }
    (phase, vec![])
}

/// Whether the gang restarts after this failure, and the failure is not recorded. This is the case if the cluster has
/// removed a pod of an elastic job before any agent was asked to run exec.py.
fn is_replaceable(stage: StartStage, failure: &Failure, seen: Seen<'_>) -> bool {
    !seen.policy.is_fixed() && stage == StartStage::Configuring && is_disruption(failure)
}

pub(super) fn restarting(restart: Restart, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Restart { next, is_empty, until, since } = restart;
    let phase = JobPhase::Restarting(restart);
    if let Some(failure) = seen.overdue() {
        return fail(&phase, failure, seen);
    }
    let is_gone = |place: &Place<'_>| !is_empty || place.seen.presence() == Presence::Absent;
    let are_gone = seen.gang.places().iter().all(is_gone);
    if are_gone && seen.now >= until {
        let gathering = Gathering { next, horizon: Some(next), ready_since: None, is_held_back: false };
        return (JobPhase::Pending { gathering, since }, vec![]);
    }
    // A pod on a dead node may stay listed forever.
    if !are_gone && seen.now >= since + seen.policy.rules.start_timeout {
        return fail(&phase, seen.gang.start_timeout(seen.policy.rules.start_timeout, is_gone), seen);
    }
    // If a deletion is late, repeat it: the first request may have had no effect.
    let is_late = !are_gone && seen.now >= until;
    (phase, if is_late { vec![Action::DeletePods(PodSelection::All)] } else { vec![] })
}
