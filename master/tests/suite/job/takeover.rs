//! A new master finds a job in the middle of what it was doing and goes on from there.

use std::time::Duration;

use master::job::gang::Gang;
use master::job::observation::{AgentState, LostRun, Observation, PodState};
use master::job::phase::{
    Action, Ending, Gathering, JobEvent, JobPhase, Known, Leftovers, PodSelection, Seen, StartStage, begin, step,
};
use master::job::replica::ReplicaPhase;
use master::job::replica::ReplicaPhase::{Configured, Exited, Joined, Running, Scheduled};
use protocol::agent::{ExitOutcome, ExitReport, LastWords, RunState, RunStatus};
use protocol::failure::{Failure, Loss};
use protocol::ids::Generation;
use protocol::view::JobResult;

use crate::job::support::{
    FIRST, GATHERING, POLICY, SECOND, SINCE, SOON, exit, exited, id, lost, seen, stop_with, stopped, was_lost, workers,
};

/// One step of the second master upon a look at the gang.
fn look(phase: JobPhase, gang: &Gang) -> (JobPhase, Vec<Action>) {
    step(phase, JobEvent::Observed, Seen { epoch: SECOND.epoch, ..seen(gang, &POLICY, SOON) })
}

/// One step of the second master upon a wish to cancel.
fn cancel(phase: JobPhase, gang: &Gang) -> (JobPhase, Vec<Action>) {
    step(phase, JobEvent::CancelWished, Seen { epoch: SECOND.epoch, ..seen(gang, &POLICY, SOON) })
}

/// The phase in which the second master begins.
fn pending() -> JobPhase {
    JobPhase::Pending { gathering: Gathering { next: SECOND, ..GATHERING }, since: SINCE }
}

fn stopping(generation: Option<Generation>, ending: Ending) -> JobPhase {
    JobPhase::Stopping { generation, horizon: generation, next: SECOND, ending, since: SOON }
}

#[test]
fn nothing_is_decided_before_every_agent_has_answered() {
    let seen = workers(&[Running(FIRST), Scheduled]);
    assert_eq!(look(pending(), &seen), (pending(), vec![]));
}

#[test]
fn a_job_that_runs_is_not_failed_because_one_of_its_agents_cannot_be_reached() {
    let late = SINCE + POLICY.start_timeout;
    let look =
        |gang: &Gang| step(pending(), JobEvent::Observed, Seen { epoch: SECOND.epoch, ..seen(gang, &POLICY, late) }).0;
    assert_eq!(look(&workers(&[Running(FIRST), Scheduled])), pending());
    for gang in [workers(&[Joined, Scheduled]), workers(&[Running(FIRST), ReplicaPhase::Requested])] {
        let JobPhase::Stopping { ending: Ending::Failed(failure), .. } = look(&gang) else { panic!("{gang:?}") };
        assert!(matches!(failure, Failure::StartTimeout { .. }), "nothing says that it runs: {failure:?}");
    }
}

#[test]
fn a_gang_that_runs_goes_on_in_its_generation() {
    let moved = look(pending(), &workers(&[Running(FIRST), Running(FIRST)]));
    assert_eq!(moved, (JobPhase::Running { generation: FIRST }, vec![]));
}

#[test]
fn the_rest_of_a_gang_that_was_being_launched_is_launched() {
    let moved = look(pending(), &workers(&[Running(FIRST), Configured(FIRST), Exited(FIRST, exit(0, 1))]));
    let launching = JobPhase::Starting { generation: FIRST, stage: StartStage::Launching, since: SOON };
    assert_eq!(moved, (launching, vec![Action::Launch(FIRST)]));
}

#[test]
fn a_gang_that_was_only_configured_is_configured_anew() {
    let moved = look(pending(), &workers(&[Configured(FIRST), Joined, Configured(FIRST)]));
    let configuring = JobPhase::Starting { generation: SECOND, stage: StartStage::Configuring, since: SOON };
    assert_eq!(moved, (configuring, vec![Action::Configure(SECOND)]));
}

#[test]
fn an_environment_of_an_older_generation_does_not_count() {
    let status = |generation| status(RunState::Configured, generation);
    let AgentState::Status(idle) = status(FIRST) else { panic!("it is one") };
    let idle = AgentState::Status(Box::new(RunStatus { generation: None, ..*idle }));
    let phase = |agent, current| ReplicaPhase::of(&Observation { agent, ..running_pod() }, current);
    assert_eq!(phase(status(FIRST), None), Configured(FIRST));
    assert_eq!(phase(status(FIRST), Some(SECOND)), Joined);
    assert_eq!(phase(AgentState::Configured(FIRST), Some(SECOND)), Joined);
    assert_eq!(phase(AgentState::Started(FIRST), Some(SECOND)), Joined);
    assert_eq!(phase(AgentState::Started(SECOND), Some(SECOND)), Running(SECOND));
    assert_eq!(phase(idle, None), Joined);
}

#[test]
fn an_acknowledgement_that_is_heard_late_does_not_undo_what_came_of_it() {
    let ended = status(RunState::Exited, FIRST);
    let after = |heard: AgentState| {
        let mut seen = Observation { agent: ended.clone(), ..running_pod() };
        seen.hear(heard);
        seen.agent
    };
    assert_eq!(after(AgentState::Configured(FIRST)), ended);
    assert_eq!(after(AgentState::Started(FIRST)), ended);
    assert_eq!(after(AgentState::Started(SECOND)), AgentState::Started(SECOND));
    let refused = || AgentState::Failed(LostRun::broken("no"));
    assert_eq!(after(refused()), refused());
}

#[test]
fn a_status_that_is_heard_late_does_not_undo_an_acknowledgement() {
    let after = |known: AgentState, heard: &AgentState| {
        let mut seen = Observation { agent: known, ..running_pod() };
        seen.hear(heard.clone());
        seen.agent
    };
    let (configured, started) = (AgentState::Configured(SECOND), AgentState::Started(SECOND));
    let (before, at_start) = (status(RunState::Exited, FIRST), status(RunState::Configured, SECOND));
    assert_eq!(after(configured.clone(), &before), configured);
    assert_eq!(after(started.clone(), &before), started);
    assert_eq!(after(started.clone(), &at_start), started);
    for newer in [status(RunState::Running, SECOND), status(RunState::Exited, SECOND)] {
        assert_eq!(after(configured.clone(), &newer), newer);
        assert_eq!(after(started.clone(), &newer), newer);
    }
}

fn status(state: RunState, generation: Generation) -> AgentState {
    let (boot_id, pid, started_at) = ("boot".to_owned(), None, None);
    let exit = (state == RunState::Exited).then(|| exit(3, 9));
    let generation = Some(generation);
    AgentState::Status(Box::new(RunStatus { seq: 3, boot_id, state, generation, pid, started_at, exit }))
}

fn running_pod() -> Observation {
    use master::job::observation::Addresses;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let pod = PodState::Running(Addresses { agent: address, tensorflow: address });
    Observation { pod: Some(pod), ..Observation::NEW }
}

#[test]
fn a_pod_that_ended_without_its_master_tells_how_its_run_ended_and_in_which_start() {
    let phase = |generation, current| {
        let words = LastWords { generation, exit: exit(3, 1) };
        let pod = PodState::Terminated { exit: Some(words), reason: "its agent ended".to_owned() };
        ReplicaPhase::of(&Observation { pod: Some(pod), ..Observation::NEW }, current)
    };
    assert_eq!(phase(Some(FIRST), None), Exited(FIRST, exit(3, 1)));
    assert_eq!(phase(Some(SECOND), Some(SECOND)), Exited(SECOND, exit(3, 1)));
    assert_eq!(
        phase(Some(FIRST), Some(SECOND)),
        ReplicaPhase::Lost(LostRun::broken("its agent ended")),
        "it is history"
    );
    assert_eq!(phase(None, None), ReplicaPhase::Lost(LostRun::broken("its agent ended")), "it may be of any start");
}

#[test]
fn a_container_whose_memory_ran_out_ends_the_run_that_was_seen_in_it() {
    let outcome = ExitOutcome::OutOfMemory { limit: Some(1 << 30) };
    let report = ExitReport { outcome, ..exit(0, 1) };
    let words = LastWords { generation: None, exit: report.clone() };
    let pod = Some(PodState::Terminated { exit: Some(words), reason: "its container was killed".to_owned() });
    let phase = |agent| ReplicaPhase::of(&Observation { pod: pod.clone(), agent, ..Observation::NEW }, Some(FIRST));
    assert_eq!(phase(status(RunState::Running, FIRST)), Exited(FIRST, report.clone()));
    assert_eq!(phase(AgentState::Started(FIRST)), Exited(FIRST, report));
    let lost = ReplicaPhase::Lost(LostRun::broken("its container was killed"));
    assert_eq!(phase(AgentState::Silent), lost, "nobody knows whether it ran");
}

#[test]
fn an_agent_that_is_killed_is_named_and_not_its_script() {
    let words = LastWords { generation: None, exit: ExitReport { outcome: ExitOutcome::Signal(9), ..exit(0, 1) } };
    let pod = PodState::Terminated { exit: Some(words.clone()), reason: "its container was killed".to_owned() };
    let phase =
        |agent| ReplicaPhase::of(&Observation { pod: Some(pod.clone()), agent, ..Observation::NEW }, Some(FIRST));
    let killed = ReplicaPhase::Lost(LostRun::broken("its agent was killed by signal 9 (SIGKILL)"));
    assert_eq!(phase(status(RunState::Running, FIRST)), killed);
    assert_eq!(phase(AgentState::Started(FIRST)), Exited(FIRST, words.exit), "the prototype's ends as its script does");
}

#[test]
fn a_gang_whose_pods_have_all_ended_meanwhile_ends_as_they_did() {
    let ended = |code| {
        let words = LastWords { generation: Some(FIRST), exit: exit(code, 1) };
        let pod = PodState::Terminated { exit: Some(words), reason: String::new() };
        ReplicaPhase::of(&Observation { pod: Some(pod), ..Observation::NEW }, None)
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
        assert_eq!(failure, Failure::ReplicaLost { replica: id("worker-1"), reason, loss: Loss::Disrupted });
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
fn a_run_that_is_reported_only_while_stopping_is_stopped() {
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

/// What a master begins with that finds the first start among the failed.
fn begun_after_a_failure() -> (JobPhase, Vec<Action>) {
    let (newest_failed, leftovers) = (Some(FIRST), Leftovers::Possible);
    begin(Known { first: SECOND, newest_failed, leftovers, result: None }, &POLICY, SINCE)
}

/// The start that a first master made after the first had failed.
const AGAIN: Generation = Generation { epoch: 1, sequence: 2 };

fn gathering_after_a_failure(leftovers: Leftovers) -> JobPhase {
    let gathering = Gathering { next: SECOND, horizon: Some(AGAIN), leftovers };
    JobPhase::Pending { gathering, since: SINCE }
}

#[test]
fn a_failed_start_on_record_makes_its_runs_history() {
    let (phase, actions) = begun_after_a_failure();
    assert_eq!((&phase, actions), (&gathering_after_a_failure(Leftovers::Possible), vec![Action::CreatePods]));
    assert_eq!(phase.horizon(), Some(AGAIN));
    let exited = |generation| Observation { agent: status(RunState::Exited, generation), ..running_pod() };
    let phase_of = |seen: &Observation| ReplicaPhase::of(seen, phase.horizon());
    assert_eq!(phase_of(&exited(FIRST)), Joined);
    assert_eq!(phase_of(&exited(AGAIN)), Exited(AGAIN, exit(3, 9)));
    let moved = look(phase, &workers(&[Joined, Joined]));
    let configuring = JobPhase::Starting { generation: SECOND, stage: StartStage::Configuring, since: SOON };
    assert_eq!(moved, (configuring, vec![Action::Configure(SECOND)]));
}

#[test]
fn leftovers_of_a_failed_start_on_record_are_swept_once() {
    let seen = workers(&[Joined, lost()]);
    let (swept, actions) = look(gathering_after_a_failure(Leftovers::Possible), &seen);
    let until = SOON + POLICY.backoff;
    assert_eq!(swept, JobPhase::Restarting { next: SECOND, without: PodSelection::Unfit, until, since: SINCE });
    assert_eq!(actions, [Action::DeletePods(PodSelection::Unfit)]);

    let (again, _) = look(gathering_after_a_failure(Leftovers::None), &seen);
    let JobPhase::Stopping { ending, .. } = again else { panic!("{again:?}") };
    assert_eq!(ending, Ending::Failed(was_lost("worker-1")));
}

#[test]
fn nothing_is_swept_before_a_silent_agent_has_said_what_it_runs() {
    let disrupted = ReplicaPhase::Lost(LostRun::disrupted("its node is drained"));
    for (phase, gone) in [(gathering_after_a_failure(Leftovers::Possible), lost()), (pending(), disrupted.clone())] {
        assert_eq!(look(phase.clone(), &workers(&[Scheduled, gone])), (phase, vec![]));
    }
    // It ran, so the pod is not replaced: the start has failed.
    let (phase, _) = look(pending(), &workers(&[Running(FIRST), disrupted]));
    let JobPhase::Stopping { generation: Some(FIRST), ending: Ending::Failed(failure), .. } = phase else {
        panic!("{phase:?}")
    };
    assert!(matches!(failure, Failure::ReplicaLost { loss: Loss::Disrupted, .. }), "{failure:?}");
}

#[test]
fn a_newer_start_than_the_failed_one_on_record_goes_on() {
    let moved = look(gathering_after_a_failure(Leftovers::Possible), &workers(&[Running(AGAIN), Running(AGAIN)]));
    assert_eq!(moved, (JobPhase::Running { generation: AGAIN }, vec![]));
}

#[test]
fn a_start_that_was_called_back_before_anyone_ran_is_no_failure() {
    let called_back = || {
        let outcome = ExitOutcome::NotStarted("stopped before it started".to_owned());
        Exited(FIRST, ExitReport { outcome, ..stopped(1) })
    };
    assert_eq!(look(pending(), &workers(&[called_back(), Scheduled])), (pending(), vec![]));
    let moved = look(pending(), &workers(&[called_back(), Joined]));
    let configuring = JobPhase::Starting { generation: SECOND, stage: StartStage::Configuring, since: SOON };
    assert_eq!(moved, (configuring, vec![Action::Configure(SECOND)]));
}

#[test]
fn its_own_starts_are_numbered_higher_than_all_that_any_agent_has_heard_of() {
    let numbered = |phase: JobPhase, gang: &Gang| {
        let (JobPhase::Stopping { next, .. }, _) = look(phase, gang) else { panic!("it fails") };
        next
    };
    let old = Generation { epoch: 1, sequence: 7 };
    let own = Generation { epoch: 2, sequence: 4 };
    assert_eq!(numbered(pending(), &workers(&[Running(old), lost()])), SECOND);
    assert_eq!(numbered(JobPhase::Running { generation: old }, &workers(&[Running(old), lost()])), SECOND);
    assert_eq!(numbered(JobPhase::Running { generation: own }, &workers(&[Running(own), lost()])), own.next());
}

#[test]
fn a_start_that_is_heard_of_while_stopping_is_the_one_that_ends() {
    let ending = || Ending::Failed(was_lost("worker-1"));
    let moved = look(stopping(None, ending()), &workers(&[Exited(FIRST, exit(0, 1)), lost()]));
    assert_eq!(moved, (stopping(Some(FIRST), ending()), stop_with(Duration::ZERO)));
}

#[test]
fn a_cancel_waits_for_what_an_earlier_master_may_have_started() {
    let (waiting, _) = cancel(pending(), &workers(&[Scheduled, Joined]));
    let (phase, _) = look(waiting.clone(), &workers(&[Scheduled, Joined]));
    assert_eq!(phase, waiting);
    let (phase, _) = look(waiting, &workers(&[Joined, Joined]));
    assert_eq!(phase, JobPhase::Releasing { result: JobResult::Cancelled, since: SOON });
}
