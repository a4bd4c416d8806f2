//! Gathers and starts a gang, for the first start and for each restart.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::Generation;

use super::running::{running, was_to_start_again};
use super::stop::{fail, stop};
use super::verdict::{Restart, regroup};
use super::{Action, Ending, Gathering, JobPhase, Leftovers, PodSelection, Seen, StartStage, queue};
use crate::gang::{Gang, Member, is_disruption};
use crate::observation::Presence;
use crate::replica::ReplicaPhase;

pub(super) fn pending(gathering: Gathering, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Seen { gang, policy, now, .. } = seen;
    let (gathering, since) = queue::at_gate(gathering, since, seen);
    let phase = JobPhase::Pending { gathering, since };
    if let Some(failure) = seen.overdue() {
        return fail(&phase, failure, seen);
    }
    if gang.is_between_starts() {
        return stop(&phase, Ending::Regroup, seen);
    }
    if gang.members().all(Member::has_joined) {
        return resume_or_start(gathering, seen);
    }
    let failure = gang.first_failure().filter(|_| !has_only_called_back(gang));
    if let Some(failure) = failure.as_ref().filter(|failure| !is_to_be_swept(gathering, gang, failure)) {
        if was_to_start_again(failure, gang.newest_launch(), seen) {
            return stop(&phase, Ending::Regroup, seen);
        }
        return fail(&phase, failure.clone(), seen);
    }
    let is_to_be_replaced = failure.is_some() || gang.any(Member::is_spent);
    // A silent agent may still have a run from an earlier master. Wait for the agent's report.
    if is_to_be_replaced && !(seen.is_taken_over() && gang.any(Member::is_silent)) {
        let until = now + policy.backoff;
        let restart = Restart { next: gathering.next, without: PodSelection::Unfit, until, since };
        return (restart.into(), vec![Action::DeletePods(PodSelection::Unfit)]);
    }
    // The gang that an earlier master started may have succeeded, although an agent is unreachable now.
    if seen.is_taken_over() && gang.newest_launch().is_some() && policy.success.is_met(gang) {
        return stop(&phase, Ending::Succeeded, seen);
    }
    if let Some(queued) = queue::enter(gathering, seen) {
        return queued;
    }
    if now >= since + policy.start_timeout && !gathering.is_gated && !may_run_without_us(gang, seen) {
        return fail(&phase, gang.start_timeout(policy.start_timeout, Member::has_joined), seen);
    }
    (phase, vec![])
}

/// Whether an earlier master started the gang, and every missing agent has a pod but does not answer. Then the
/// scripts are perhaps running, and only this master cannot reach the agents.
fn may_run_without_us(gang: &Gang, seen: Seen<'_>) -> bool {
    let is_known_or_silent = |member: &Member| member.has_joined() || member.is_silent();
    seen.is_taken_over() && gang.newest_launch().is_some() && gang.members().all(is_known_or_silent)
}

/// Whether no exec.py was started, and every dead replica received a stop request before its exec.py could start. After
/// this stop request, the agent accepts another start.
fn has_only_called_back(gang: &Gang) -> bool {
    let is_fine = |phase: &ReplicaPhase| !phase.is_dead() || phase.has_succeeded() || phase.was_called_back();
    gang.newest_launch().is_none() && gang.all(is_fine)
}

/// Whether to replace a lost pod without recording a failure: no exec.py was started, and the pod was evicted or may be
/// left over from a start whose failure is already on record.
fn is_to_be_swept(gathering: Gathering, gang: &Gang, failure: &Failure) -> bool {
    let is_leftover = gathering.leftovers == Leftovers::Possible;
    (is_disruption(failure) || is_leftover) && gang.newest_launch().is_none()
}

/// Continues with a complete gang. After a takeover, the gang may be in the middle of a start or a run.
fn resume_or_start(gathering: Gathering, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Some(generation) = seen.gang.newest_launch() else {
        return start(gathering.next, StartStage::Configuring, seen);
    };
    // A run was started, so every agent of that start had been configured.
    if let Some(lost) = seen.gang.missing_in(generation) {
        let phase = JobPhase::Running { generation, since: seen.now };
        return fail(&phase, lost, seen);
    }
    if seen.gang.all(ReplicaPhase::was_launched) {
        return running(generation, seen.now, seen);
    }
    start(generation, StartStage::Launching, seen)
}

pub(super) fn start(generation: Generation, stage: StartStage, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let action = match stage {
        StartStage::Configuring => Action::Configure(generation),
        StartStage::Launching => Action::Launch(generation),
    };
    (JobPhase::Starting { generation, stage, since: seen.now, pushes: seen.policy.pushes }, vec![action])
}

/// See [`JobPhase::Starting`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    pub(super) generation: Generation,
    pub(super) stage: StartStage,
    pub(super) since: Duration,
    pub(super) pushes: u32,
}

pub(super) fn starting(attempt: Attempt, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Attempt { generation, stage, since, pushes } = attempt;
    let Seen { gang, policy, now, .. } = seen;
    let phase = JobPhase::Starting { generation, stage, since, pushes };
    if stage == StartStage::Launching && gang.all(ReplicaPhase::was_launched) {
        return running(generation, seen.now, seen);
    }
    if let Some(failure) = gang.first_failure().or_else(|| seen.overdue()) {
        if is_replaceable(stage, &failure, seen) {
            return regroup(generation.next(), seen);
        }
        return fail(&phase, failure, seen);
    }
    // No exec.py runs yet. The earlier code may be lost, and then this start would wait for it.
    if stage == StartStage::Configuring && policy.pushes > pushes {
        return regroup(generation.next(), seen);
    }
    if stage == StartStage::Configuring && gang.all(ReplicaPhase::was_configured) {
        return start(generation, StartStage::Launching, seen);
    }
    if now >= since + policy.start_timeout {
        let has_come = |member: &Member| match stage {
            StartStage::Configuring => member.phase.was_configured(),
            StartStage::Launching => member.phase.was_launched(),
        };
        return fail(&phase, gang.start_timeout(policy.start_timeout, has_come), seen);
    }
    (phase, vec![])
}

/// Whether the gang restarts after this failure, and the failure is not recorded. This is the case if the cluster has
/// removed a pod of an elastic job before any agent was asked to run exec.py.
fn is_replaceable(stage: StartStage, failure: &Failure, seen: Seen<'_>) -> bool {
    seen.policy.elastic.is_some() && stage == StartStage::Configuring && is_disruption(failure)
}

pub(super) fn restarting(restart: Restart, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let Restart { next, without, until, since } = restart;
    if let Some(failure) = seen.overdue() {
        return fail(&restart.into(), failure, seen);
    }
    let is_gone = |member: &Member| match without {
        PodSelection::All => member.pod == Presence::Absent,
        PodSelection::Unfit | PodSelection::Unended | PodSelection::Idle | PodSelection::Live => member.is_fit(),
    };
    // An elastic job does not wait until its lost pods are gone.
    let is_elastic = seen.policy.elastic.is_some() && without == PodSelection::Unfit;
    let is_swept = is_elastic || seen.gang.places().iter().all(is_gone);
    if is_swept && seen.now >= until {
        let leftovers = Leftovers::None;
        let gathering = Gathering { next, horizon: Some(next), leftovers, ready_since: None, is_gated: false };
        return (JobPhase::Pending { gathering, since }, vec![]);
    }
    // A pod on a dead node may stay listed forever.
    if !is_swept && seen.now >= since + seen.policy.start_timeout {
        return fail(&restart.into(), seen.gang.start_timeout(seen.policy.start_timeout, is_gone), seen);
    }
    // If a deletion is late, repeat it: a pod may have become unfit since, or the first request may have had no effect.
    let is_late = !is_swept && seen.now >= until;
    (restart.into(), if is_late { vec![Action::DeletePods(without)] } else { vec![] })
}
