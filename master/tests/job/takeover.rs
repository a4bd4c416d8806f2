//! A new master finds a job in the middle of what it was doing and goes on from there.

use std::time::Duration;

use master::job::phase::{Action, Ending, JobPhase, StartStage};
use master::job::replica::ReplicaPhase::{Configured, Exited, Joined, Running, Scheduled};
use master::job::replica::{AgentState, Observation, PodState, ReplicaPhase};
use protocol::agent::{LastWords, RunState, RunStatus};
use protocol::failure::Failure;
use protocol::ids::Generation;
use protocol::view::JobResult;

use crate::support::{
    FIRST, POLICY, SECOND, SINCE, SOON, cancel, exit, exited, id, look, lost, stop_with, stopped, was_lost, workers,
};

/// The phase in which the second master begins.
fn pending() -> JobPhase {
    JobPhase::Pending { first: SECOND, since: SINCE }
}

fn stopping(generation: Option<Generation>, ending: Ending) -> JobPhase {
    JobPhase::Stopping { generation, ending, since: SOON }
}

#[test]
fn nothing_is_decided_before_every_agent_has_answered() {
    let seen = workers(&[Running(FIRST), Scheduled]);
    assert_eq!(look(pending(), &seen), (pending(), vec![]));
}

#[test]
fn a_gang_that_runs_goes_on_in_its_generation() {
    let moved = look(pending(), &workers(&[Running(FIRST), Running(FIRST)]));
    assert_eq!(moved, (JobPhase::Running { generation: FIRST }, vec![Action::Follow(FIRST)]));
}

#[test]
fn the_rest_of_a_gang_that_was_being_launched_is_launched() {
    let moved = look(pending(), &workers(&[Running(FIRST), Configured(FIRST), Exited(FIRST, exit(0, 1))]));
    let launching = JobPhase::Starting { generation: FIRST, stage: StartStage::Launching };
    assert_eq!(moved, (launching, vec![Action::Launch(FIRST)]));
}

#[test]
fn a_gang_that_was_only_configured_is_configured_anew() {
    let moved = look(pending(), &workers(&[Configured(FIRST), Joined, Configured(FIRST)]));
    let configuring = JobPhase::Starting { generation: SECOND, stage: StartStage::Configuring };
    assert_eq!(moved, (configuring, vec![Action::Configure(SECOND)]));
}

#[test]
fn an_environment_of_an_older_generation_does_not_count() {
    let status = |generation| {
        let (boot_id, pid, started_at, exit) = ("boot".to_owned(), None, None, None);
        let status = RunStatus { seq: 1, boot_id, state: RunState::Configured, generation, pid, started_at, exit };
        AgentState::Status(Box::new(status))
    };
    let phase = |agent, current| ReplicaPhase::of(&Observation { agent, ..running_pod() }, current);
    assert_eq!(phase(status(Some(FIRST)), None), Configured(FIRST));
    assert_eq!(phase(status(Some(FIRST)), Some(SECOND)), Joined);
    assert_eq!(phase(AgentState::Configured(FIRST), Some(SECOND)), Joined);
    assert_eq!(phase(AgentState::Started(FIRST), Some(SECOND)), Joined);
    assert_eq!(phase(AgentState::Started(SECOND), Some(SECOND)), Running(SECOND));
    assert_eq!(phase(status(None), None), Joined);
}

#[test]
fn an_acknowledgement_that_is_heard_late_does_not_undo_what_came_of_it() {
    let (boot_id, pid, started_at) = ("boot".to_owned(), None, None);
    let ended = RunStatus {
        seq: 3,
        boot_id,
        state: RunState::Exited,
        generation: Some(FIRST),
        pid,
        started_at,
        exit: Some(exit(0, 1)),
    };
    let ended = AgentState::Status(Box::new(ended));
    let after = |heard: AgentState| {
        let mut seen = Observation { agent: ended.clone(), ..running_pod() };
        seen.hear(heard);
        seen.agent
    };
    assert_eq!(after(AgentState::Configured(FIRST)), ended);
    assert_eq!(after(AgentState::Started(FIRST)), ended);
    assert_eq!(after(AgentState::Started(SECOND)), AgentState::Started(SECOND));
    assert_eq!(after(AgentState::Refused("no".to_owned())), AgentState::Refused("no".to_owned()));
}

fn running_pod() -> Observation {
    use master::job::replica::Addresses;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let pod = PodState::Running(Addresses { agent: address, tensorflow: address });
    Observation { pod: Some(pod), agent: AgentState::Silent }
}

#[test]
fn a_pod_that_ended_without_its_master_tells_how_its_run_ended_and_in_which_start() {
    let phase = |generation, current| {
        let words = LastWords { generation, exit: exit(3, 1) };
        let pod = PodState::Terminated { exit: Some(words), reason: "its agent ended".to_owned() };
        ReplicaPhase::of(&Observation { pod: Some(pod), agent: AgentState::Silent }, current)
    };
    assert_eq!(phase(Some(FIRST), None), Exited(FIRST, exit(3, 1)));
    assert_eq!(phase(Some(SECOND), Some(SECOND)), Exited(SECOND, exit(3, 1)));
    assert_eq!(phase(Some(FIRST), Some(SECOND)), ReplicaPhase::Lost("its agent ended".to_owned()), "it is history");
    assert_eq!(phase(None, None), ReplicaPhase::Lost("its agent ended".to_owned()), "it may be of any start");
}

#[test]
fn a_gang_whose_pods_have_all_ended_meanwhile_ends_as_they_did() {
    let ended = |code| {
        let words = LastWords { generation: Some(FIRST), exit: exit(code, 1) };
        let pod = PodState::Terminated { exit: Some(words), reason: String::new() };
        ReplicaPhase::of(&Observation { pod: Some(pod), agent: AgentState::Silent }, None)
    };
    let (moved, _) = look(pending(), &workers(&[ended(0), ended(0)]));
    assert_eq!(moved, stopping(Some(FIRST), Ending::Succeeded));
    let (moved, _) = look(pending(), &workers(&[ended(0), ended(3)]));
    assert_eq!(moved, stopping(Some(FIRST), Ending::Failed(exited("worker-1", exit(3, 1)))));
}

#[test]
fn a_gang_that_has_ended_well_meanwhile_has_succeeded() {
    let ended = || Exited(FIRST, exit(0, 1));
    let moved = look(pending(), &workers(&[ended(), ended()]));
    assert_eq!(moved, (stopping(Some(FIRST), Ending::Succeeded), stop_with(POLICY.stop_grace)));
}

#[test]
fn a_gang_that_was_being_stopped_for_a_failure_has_failed_of_it() {
    let cause = exit(1, 5);
    let moved = look(pending(), &workers(&[Exited(FIRST, stopped(6)), Exited(FIRST, cause.clone())]));
    let ending = Ending::Failed(exited("worker-1", cause));
    assert_eq!(moved, (stopping(Some(FIRST), ending), stop_with(Duration::ZERO)));
}

#[test]
fn a_gang_of_which_one_is_lost_is_stopped_in_its_generation() {
    let moved = look(pending(), &workers(&[Running(FIRST), lost()]));
    let ending = Ending::Failed(was_lost("worker-1"));
    assert_eq!(moved, (stopping(Some(FIRST), ending), stop_with(Duration::ZERO)));
}

#[test]
fn a_gang_of_which_one_has_forgotten_its_run_fails_and_names_it() {
    for forgetful in [Joined, Configured(SECOND)] {
        let moved = look(pending(), &workers(&[Running(FIRST), forgetful, Exited(FIRST, exit(0, 1))]));
        let (JobPhase::Stopping { generation, ending: Ending::Failed(failure), .. }, actions) = moved else {
            panic!("a launch would be refused: {moved:?}")
        };
        let reason = "its agent knows nothing of start 1.1, in which others run".to_owned();
        assert_eq!(failure, Failure::ReplicaLost { replica: id("worker-1"), reason });
        assert_eq!((generation, actions), (Some(FIRST), stop_with(Duration::ZERO)));
    }
}

#[test]
fn a_cancel_before_all_have_answered_stops_and_follows_what_is_known_to_run() {
    for known in [Running(FIRST), Configured(FIRST)] {
        let moved = cancel(pending(), &workers(&[known, Scheduled]));
        assert_eq!(moved, (stopping(Some(FIRST), Ending::Cancelled), stop_with(POLICY.stop_grace)));
    }
}

#[test]
fn a_run_that_is_heard_of_only_while_stopping_is_followed_and_stopped() {
    let moved = look(stopping(None, Ending::Cancelled), &workers(&[Joined, Running(FIRST)]));
    assert_eq!(moved, (stopping(Some(FIRST), Ending::Cancelled), stop_with(POLICY.stop_grace)));
}

#[test]
fn the_end_of_a_start_waits_for_agents_that_have_not_answered_yet() {
    let echo = || Exited(FIRST, exit(134, 9));
    let waiting = stopping(Some(FIRST), Ending::Failed(exited("worker-0", exit(134, 9))));
    let seen = workers(&[echo(), Scheduled]);
    assert_eq!(look(waiting.clone(), &seen), (waiting.clone(), stop_with(Duration::ZERO)));

    let (phase, _) = look(waiting, &workers(&[echo(), Exited(FIRST, exit(1, 5))]));
    let JobPhase::Releasing { result: JobResult::Failed { failure }, .. } = phase else { panic!("{phase:?}") };
    assert_eq!(failure, exited("worker-1", exit(1, 5)));
}
