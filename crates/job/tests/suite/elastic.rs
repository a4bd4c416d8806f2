//! Tests of elastic jobs: how a new master continues a job, and when the next start waits. Also tests the takeover of
//! a fixed gang that was being stopped for new code.

use std::time::Duration;

use job::gang::Gang;
use job::observation::{AgentState, LostRun, Observation, PodDeletion, PodState, Wait};
use job::phase::{Action, Attempt, Ending, JobEvent, JobPhase, PodSelection, StartStage};
use job::policy::{GangKind, Policy, RELEASE_TIMEOUT};
use job::roster::Roster;
use job::upkeep::{Growth, upkeep};
use protocol::agent::{ExitReport, Membership, RunState, RunStatus};
use protocol::elastic::Workers;
use protocol::failure::Failure;
use protocol::ids::{Generation, ReplicaId};

use crate::support::{
    FIRST, POLICY, SECOND, SINCE, SOON, changed, ending_of, exit, fixed, found_place, id, pending, reported, running,
    running_pod, seen, seen_anew, status, step, stopped, stopping,
};

/// The policy of a job of 2 to 4 workers.
fn policy() -> Policy {
    changed(POLICY, |policy| {
        policy.rules.kind = GangKind::Elastic;
        policy.wishes.workers = Workers { min: 2, max: 4 };
        policy.rules.grow_interval = Some(Duration::from_secs(60));
    })
}

/// A worker in a pod that an earlier master may have created.
fn found(seen: Observation) -> Observation {
    Observation { is_found: true, ..seen }
}

/// A worker in such a pod in this state, whose agent has not answered.
fn found_in(pod: PodState) -> Observation {
    found(Observation { pod: Some(pod), ..Observation::NEW })
}

/// A worker whose agent reports a run of the first start. `seat` is the worker's seat in the gang of three members.
fn member(seat: u32, state: RunState, exit: Option<ExitReport>) -> Observation {
    let membership = Some(Membership { seat, of: 3, start: 0, pushes: 0 });
    let agent = reported(RunStatus { membership, ..status(state, FIRST, exit) });
    found(Observation { agent, ..running_pod() })
}

/// A worker whose agent is idle.
fn joined() -> Observation {
    found(Observation { agent: reported(RunStatus::idle("boot")), ..running_pod() })
}

fn gang(workers: &[Observation], horizon: Option<Generation>) -> Gang<'static> {
    let place =
        |(index, seen): (usize, &Observation)| found_place(id(&format!("worker-{index}")), seen.clone(), horizon);
    Gang::new(workers.iter().enumerate().map(place).collect(), horizon)
}

/// One step in which a new master observes these workers.
fn look(workers: &[Observation]) -> (JobPhase, Vec<Action>) {
    let (gang, policy) = (gang(workers, None), policy());
    step(pending(), JobEvent::Observed, seen_anew(&gang, &policy, SOON))
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
    assert_eq!(
        gang(&workers, None).first_failure_of(|_| true).and_then(|failure| failure.replica()),
        Some(id("worker-2"))
    );
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
    let wait = Some(Wait::Other("0/3 nodes have room".to_owned()));
    let waits = found_in(PodState::Pending { has_node: false, wait });
    let (_, actions) = look(&[joined(), joined(), waits.clone(), waits]);
    let members: Option<&[ReplicaId]> = roster(&actions).map(Roster::members);
    assert_eq!(members, Some(&[id("worker-0"), id("worker-1")][..]), "{actions:?}");
}

#[test]
fn a_pod_that_its_node_prepares_delays_a_start() {
    let prepares = PodState::Pending { has_node: true, wait: Some(Wait::Preparing { image: "digits:1".to_owned() }) };
    let (phase, actions) = look(&[joined(), joined(), joined(), found_in(prepares)]);
    assert!(matches!(phase, JobPhase::Pending { .. }), "{phase:?}");
    assert_eq!(roster(&actions), None);
}

#[test]
fn a_start_timeout_names_an_obstacle_before_a_pod_that_is_prepared() {
    let prepares = PodState::Pending { has_node: true, wait: Some(Wait::Preparing { image: "digits:1".to_owned() }) };
    let no_room = PodState::Pending { has_node: false, wait: Some(Wait::Other("0/3 nodes have room".to_owned())) };
    let [prepared, hindered] = [prepares, no_room].map(found_in);
    for (workers, reason) in [
        (vec![prepared.clone(), hindered], "0/3 nodes have room"),
        (vec![prepared], "the node still prepares the pod (image digits:1, volumes, network)"),
    ] {
        let failure = gang(&workers, None).start_timeout(Duration::from_secs(9), |_| false);
        let Failure::StartTimeout { reason: given, .. } = failure else { panic!("{failure:?}") };
        assert_eq!(given.as_deref(), Some(reason));
    }
}

#[test]
fn a_silent_pod_that_may_run_exec_py_delays_a_start_after_a_takeover() {
    // If a back end of machines knows nothing about a machine, it lists the machine as leaving.
    let unknown = found_in(PodState::Leaving { reason: "its message cannot be read".to_owned() });
    for silent in [found(running_pod()), unknown] {
        let (phase, actions) = look(&[joined(), joined(), joined(), silent]);
        assert!(matches!(phase, JobPhase::Pending { .. }), "{phase:?}");
        assert_eq!(roster(&actions), None);
    }
}

#[test]
fn a_surplus_pod_whose_agent_has_failed_is_deleted() {
    let mut failed = member(2, RunState::Running, None);
    failed.hear(AgentState::Failed(LostRun::broken("it does not answer")));
    let surplus = Observation { deletion: PodDeletion::NotAsked, ..failed };
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
        found_place(id(&format!("worker-{seat}")), seen, None)
    };
    let gang = fixed((0..3).map(halted).collect());
    let after = |pushes: u32| {
        let policy = changed(POLICY, |policy| policy.wishes.pushes = pushes);
        ending_of(step(pending(), JobEvent::Observed, seen_anew(&gang, &policy, SOON)).0)
    };
    assert_eq!(after(1), Ending::Regroup);
    // The earlier master may also have stopped the runs for a user who had the job suspended and resumed.
    assert_eq!(after(0), Ending::Regroup);
}

#[test]
fn a_script_that_leaves_because_another_member_was_lost_is_not_the_cause() {
    let left = |seat| member(seat, RunState::Exited, Some(exit(75, 1)));
    let mut killed = member(1, RunState::Running, None);
    killed.pod = Some(PodState::ended(None, "its agent was killed"));
    let gang = gang(&[left(0), killed, left(2)], None);
    let first = gang.first_failure_of(|_| true).expect("no failure");
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
    let other = |seat| member(seat, RunState::Running, None);
    let (gang, policy) = (gang(&[other(0), unreachable(1, false), other(2)], Some(FIRST)), policy());
    let (phase, actions) = step(running(), JobEvent::Observed, seen(&gang, &policy, SOON));
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
    let now = SOON + policy.rules.graces.cancel + RELEASE_TIMEOUT;
    let moved = step(phase.clone(), JobEvent::Observed, seen_anew(&gang, &policy, now));
    assert_eq!(moved, (phase, vec![Action::DeletePods(PodSelection::Unended)]));
    let deleted = gang.places().iter().filter(|place| PodSelection::Unended.includes(place, &gang));
    assert_eq!(deleted.map(|place| place.id).collect::<Vec<_>>(), [id("worker-2")]);
}
