//! Tests of elastic jobs: how a new master continues a job, and when the next start waits. Also tests the takeover of
//! a fixed gang that was being stopped for new code.

use std::net::SocketAddr;
use std::time::Duration;

use job::gang::{Gang, Member};
use job::observation::{Addresses, AgentState, DeletedBy, LostRun, Observation, PodState, Wait};
use job::phase::{Action, Attempt, Ending, JobEvent, JobPhase, PodSelection, Seen, StartStage, Stop};
use job::policy::{GangKind, Policy};
use job::roster::Roster;
use job::turns::Turn;
use job::upkeep::{Growth, upkeep};
use protocol::agent::{ExitReport, Membership, RunState, RunStatus};
use protocol::elastic::Workers;
use protocol::ids::{Generation, ReplicaId};

use crate::support::{
    FIRST, NO_RESTARTS, POLICY, SECOND, SINCE, SOON, exit, fixed, id, pending, step, stopped, stopping,
};

/// The policy of a job of 2 to 4 workers.
fn policy() -> Policy {
    Policy {
        kind: GangKind::Elastic,
        workers: Workers { min: 2, max: 4 },
        grow_interval: Some(Duration::from_secs(60)),
        ..POLICY
    }
}

fn running_pod() -> Option<PodState> {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    Some(PodState::Running(Addresses { agent: address, tensorflow: address }))
}

/// A worker whose agent has not answered, in a pod that an earlier master may have created.
fn found(pod: Option<PodState>) -> Observation {
    Observation { pod, is_found: true, ..Observation::NEW }
}

/// A worker whose agent reports a run of the first start. `seat` is the worker's seat in the gang of three members.
fn member(seat: u32, state: RunState, exit: Option<ExitReport>) -> Observation {
    let status = RunStatus {
        state,
        generation: Some(FIRST),
        exit,
        membership: Some(Membership { seat, of: 3, start: 0, pushes: 0 }),
        ..RunStatus::idle("boot")
    };
    Observation { agent: AgentState::Status(Box::new(status)), ..found(running_pod()) }
}

/// A worker whose agent is idle.
fn joined() -> Observation {
    let mut seen = member(0, RunState::Idle, None);
    if let AgentState::Status(status) = &mut seen.agent {
        (status.generation, status.membership) = (None, None);
    }
    seen
}

fn gang(workers: &[Observation], horizon: Option<Generation>) -> Gang {
    let member = |(index, seen): (usize, &Observation)| Member::of(id(&format!("worker-{index}")), seen, horizon);
    Gang::new(workers.iter().enumerate().map(member).collect(), horizon)
}

/// One step in which a new master observes these workers.
fn look(workers: &[Observation]) -> (JobPhase, Vec<Action>) {
    let (gang, policy) = (gang(workers, None), policy());
    let seen =
        Seen { gang: &gang, policy: &policy, turn: &Turn::Go, restarts: &NO_RESTARTS, epoch: SECOND.epoch, now: SOON };
    step(pending(), JobEvent::Observed, seen)
}

fn roster(actions: &[Action]) -> Option<&Roster> {
    actions.iter().find_map(|action| if let Action::Enrol { roster, .. } = action { Some(roster) } else { None })
}

#[test]
fn a_new_master_does_not_take_a_job_as_successful_before_it_has_observed_all_members() {
    let done = |seat| member(seat, RunState::Exited, Some(exit(0, 1)));
    let (phase, _) = look(&[found(running_pod()), done(1), done(2)]);
    assert_eq!(phase, pending(), "the phase has changed although worker-0 may still train");
    let (phase, _) = look(&[done(0), done(1), done(2)]);
    assert!(matches!(phase, JobPhase::Stopping { .. }), "{phase:?}");
}

#[test]
fn a_new_master_continues_a_launch_and_keeps_a_member_that_confirms_its_start_later() {
    let mut workers = [0, 1].map(|seat| member(seat, RunState::Running, None)).to_vec();
    workers.push(member(2, RunState::Configured, None));
    let (phase, _) = look(&workers);
    assert!(matches!(phase, JobPhase::Starting(Attempt { stage: StartStage::Launching, .. })), "{phase:?}");
    workers[2].hear(AgentState::Started(FIRST));
    assert_eq!(gang(&workers, None).members().count(), 3);
    workers[2].hear(AgentState::Failed(LostRun::broken("it does not answer")));
    assert_eq!(gang(&workers, None).first_failure().and_then(|failure| failure.replica()), Some(id("worker-2")));
}

#[test]
fn agents_that_may_have_been_asked_to_start_are_stopped_before_a_new_master_starts_the_gang() {
    let configured = |seat| member(seat, RunState::Configured, None);
    let (phase, actions) = look(&[configured(0), configured(1), configured(2)]);
    assert!(matches!(phase, JobPhase::Stopping { .. }), "{phase:?}");
    assert!(actions.iter().any(|action| matches!(action, Action::StopRuns { .. })), "{actions:?}");
}

#[test]
fn a_pod_that_cannot_be_scheduled_does_not_delay_a_start_after_a_takeover() {
    let waits =
        found(Some(PodState::Pending { has_node: false, wait: Some(Wait::Other("0/3 nodes have room".to_owned())) }));
    let (_, actions) = look(&[joined(), joined(), waits.clone(), waits]);
    let members: Option<&[ReplicaId]> = roster(&actions).map(Roster::members);
    assert_eq!(members, Some(&[id("worker-0"), id("worker-1")][..]), "{actions:?}");
}

#[test]
fn a_silent_pod_that_may_run_exec_py_delays_a_start_after_a_takeover() {
    // If a back end of machines knows nothing about a machine, it lists the machine as leaving.
    let unknown = Some(PodState::Leaving { reason: "its message cannot be read".to_owned() });
    for pod in [running_pod(), unknown] {
        let (phase, actions) = look(&[joined(), joined(), joined(), found(pod)]);
        assert!(matches!(phase, JobPhase::Pending { .. }), "{phase:?}");
        assert_eq!(roster(&actions), None);
    }
}

#[test]
fn a_surplus_pod_whose_agent_has_failed_is_deleted() {
    let mut failed = member(2, RunState::Running, None);
    failed.hear(AgentState::Failed(LostRun::broken("it does not answer")));
    let surplus = Observation { deleted_by: DeletedBy::Others, ..failed };
    let gang = gang(&[joined(), joined(), surplus], Some(SECOND));
    let kept = upkeep(&gang, Workers { min: 1, max: 2 }, Growth::Free, true, SINCE);
    assert_eq!(kept.delete, [id("worker-2")]);
}

#[test]
fn a_gang_that_an_earlier_master_was_stopping_is_not_recorded_as_failed() {
    let halted = |seat| member(seat, RunState::Exited, Some(stopped(1)));
    let (phase, actions) = look(&[halted(0), halted(1), halted(2)]);
    assert!(matches!(phase, JobPhase::Stopping { .. }), "{phase:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::RecordRestart(_))), "{actions:?}");
}

#[test]
fn a_fixed_gang_that_an_earlier_master_was_stopping_has_not_failed_if_all_runs_were_stopped() {
    let halted = |seat: u32| {
        let seen = member(seat, RunState::Exited, Some(stopped(1)));
        Member::of(id(&format!("worker-{seat}")), &seen, None)
    };
    let gang = fixed((0..3).map(halted).collect());
    let after = |pushes: u32| {
        let policy = Policy { pushes, ..POLICY };
        let seen = Seen {
            gang: &gang,
            policy: &policy,
            turn: &Turn::Go,
            restarts: &NO_RESTARTS,
            epoch: SECOND.epoch,
            now: SOON,
        };
        step(pending(), JobEvent::Observed, seen).0
    };
    assert!(matches!(after(1), JobPhase::Stopping(Stop { ending: Ending::Regroup, .. })), "{:?}", after(1));
    // The earlier master may also have stopped the runs for a user who had the job suspended and resumed.
    assert!(matches!(after(0), JobPhase::Stopping(Stop { ending: Ending::Regroup, .. })), "{:?}", after(0));
}

#[test]
fn a_script_that_leaves_because_another_member_was_lost_is_not_the_cause() {
    let left = |seat| member(seat, RunState::Exited, Some(exit(75, 1)));
    let mut killed = member(1, RunState::Running, None);
    killed.pod = Some(PodState::ended(None, "its agent was killed"));
    let gang = gang(&[left(0), killed, left(2)], None);
    let first = gang.first_failure().expect("no failure");
    assert_eq!(first.replica(), Some(id("worker-0")), "the first failure is not the exit of worker-0");
    assert_eq!(gang.cause(first).replica(), Some(id("worker-1")));
}

/// A member of the first start whose agent has not answered for the length of its lease.
fn unreachable(seat: u32, is_fenced: bool) -> Observation {
    let mut seen = member(seat, RunState::Running, None);
    seen.hear(AgentState::Unreachable { lost: LostRun::disrupted("it is silent"), is_fenced });
    seen
}

#[test]
fn when_a_member_is_unreachable_the_other_runs_are_stopped_without_grace() {
    let running = |seat| member(seat, RunState::Running, None);
    let (gang, policy) = (gang(&[running(0), unreachable(1, false), running(2)], Some(FIRST)), policy());
    let seen = Seen { gang: &gang, policy: &policy, turn: &Turn::Go, restarts: &NO_RESTARTS, epoch: 1, now: SOON };
    let (phase, actions) = step(JobPhase::Running { generation: FIRST, since: SINCE }, JobEvent::Observed, seen);
    assert!(matches!(phase, JobPhase::Stopping { .. }), "{phase:?}");
    assert_eq!(actions, [Action::StopRuns { grace: Duration::ZERO }]);
}

#[test]
fn the_next_start_waits_until_the_run_of_an_unreachable_member_is_dead() {
    let next_members = |is_fenced: bool| {
        let mut lost = found(running_pod());
        lost.hear(AgentState::Unreachable { lost: LostRun::disrupted("it is silent"), is_fenced });
        let (_, actions) = look(&[joined(), lost, joined()]);
        roster(&actions).map(|roster| roster.members().to_vec())
    };
    assert_eq!(next_members(false), None);
    assert_eq!(next_members(true), Some(vec![id("worker-0"), id("worker-2")]));
}

#[test]
fn a_stop_that_takes_too_long_deletes_a_found_pod_whose_agent_does_not_answer_and_no_idle_pod() {
    let ended = |seat| member(seat, RunState::Exited, Some(stopped(1)));
    let (gang, policy) = (gang(&[ended(0), ended(1), found(running_pod()), joined()], Some(FIRST)), policy());
    let phase = stopping(Ending::Cancelled);
    let now = SOON + policy.stop_grace + policy.release_timeout;
    let seen = Seen { gang: &gang, policy: &policy, turn: &Turn::Go, restarts: &NO_RESTARTS, epoch: SECOND.epoch, now };
    assert_eq!(step(phase.clone(), JobEvent::Observed, seen), (phase, vec![Action::DeletePods(PodSelection::Unended)]));
    let deleted = gang.places().iter().filter(|place| PodSelection::Unended.includes(place, &gang));
    assert_eq!(deleted.map(|place| place.id).collect::<Vec<_>>(), [id("worker-2")]);
}
