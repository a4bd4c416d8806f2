//! Tests of a new master that finds a job in any phase and continues it.

use std::time::Duration;

use job::gang::Gang;
use job::observation::{AgentState, LostRun, Observation, PodState};
use job::phase::{Action, Attempt, Ending, Gathering, JobEvent, JobPhase, Known, Seen, StartStage, Stop, begin};
use job::policy::STOP_GRACE;
use job::replica::ReplicaPhase;
use job::replica::ReplicaPhase::{Configured, Exited, Joined, Running, Scheduled};
use protocol::agent::{ExitOutcome, ExitReport, LastWords, RunState, RunStatus};
use protocol::failure::{Failure, Loss};
use protocol::ids::Generation;
use protocol::view::JobResult;

use crate::support::{
    FIRST, GATHERING, POLICY, SECOND, SINCE, SOON, begin_start, delete, ending_of, exit, exited, found, grace_of, id,
    lost, observed, reported, running_pod, seen, step, stop_with, stopped, was_lost, workers,
};

/// One step in which the second master observes the gang.
fn look(phase: JobPhase, gang: &Gang<'_>) -> (JobPhase, Vec<Action>) {
    step(phase, JobEvent::Observed, Seen { epoch: SECOND.epoch, ..seen(gang, &POLICY, SOON) })
}

/// The phase after the second master has begun its first start.
fn configuring() -> JobPhase {
    JobPhase::Starting(Attempt { generation: SECOND, stage: StartStage::Configuring, since: SOON, pushes: 0 })
}

/// One step of the second master with a wish to cancel.
fn cancel(phase: JobPhase, gang: &Gang<'_>) -> (JobPhase, Vec<Action>) {
    step(phase, JobEvent::CancelWished, Seen { epoch: SECOND.epoch, ..seen(gang, &POLICY, SOON) })
}

/// The phase in which the second master begins.
fn pending() -> JobPhase {
    JobPhase::Pending { gathering: Gathering { next: SECOND, ..GATHERING }, since: SINCE }
}

fn stopping(generation: Option<Generation>, ending: Ending) -> JobPhase {
    let grace = grace_of(&ending);
    JobPhase::Stopping(Stop {
        generation,
        horizon: generation,
        next: SECOND,
        ending,
        since: SOON,
        evaluates_until: SOON,
        grace,
    })
}

#[test]
fn a_new_master_continues_a_gang_from_the_state_in_which_it_finds_the_gang() {
    let (runs, well, cause) = (Running(FIRST), Exited(FIRST, exit(0, 1)), exit(1, 5));
    let launching =
        JobPhase::Starting(Attempt { generation: FIRST, stage: StartStage::Launching, since: SOON, pushes: 0 });
    let not_started = ExitOutcome::NotStarted("stopped before it started".to_owned());
    let not_started = Exited(FIRST, ExitReport { outcome: not_started, ..stopped(1) });
    let failed = |failure| (stopping(Some(FIRST), Ending::Failed(failure)), stop_with(Duration::ZERO));
    for (replicas, expected) in [
        (vec![runs.clone(), Scheduled], (pending(), vec![])),
        (vec![runs.clone(), runs.clone()], (JobPhase::Running { generation: FIRST, since: SOON }, vec![])),
        (vec![runs.clone(), Configured(FIRST), well.clone()], (launching, vec![Action::Launch(FIRST)])),
        (vec![Configured(FIRST), Joined, Configured(FIRST)], (configuring(), begin_start(SECOND, 3))),
        (vec![well.clone(), well], (stopping(Some(FIRST), Ending::Succeeded), stop_with(STOP_GRACE))),
        // An earlier master was stopping the gang because of a failure, or before any run had begun.
        (vec![Exited(FIRST, stopped(6)), Exited(FIRST, cause.clone())], failed(exited("worker-1", cause))),
        (vec![not_started.clone(), Scheduled], (pending(), vec![])),
        (vec![not_started, Joined], (configuring(), begin_start(SECOND, 2))),
        (vec![runs, lost()], failed(was_lost("worker-1"))),
    ] {
        assert_eq!(look(pending(), &found(&replicas)), expected, "{replicas:?}");
    }
}

#[test]
fn an_unreachable_agent_does_not_fail_a_running_job_at_the_start_timeout() {
    let late = SINCE + POLICY.rules.start_timeout;
    let look = |gang: &Gang<'_>| {
        step(pending(), JobEvent::Observed, Seen { epoch: SECOND.epoch, ..seen(gang, &POLICY, late) }).0
    };
    assert_eq!(look(&found(&[Running(FIRST), Scheduled])), pending());
    let gang = found(&[Joined, Scheduled]);
    let JobPhase::Stopping(Stop { ending: Ending::Failed(failure), .. }) = look(&gang) else { panic!("{gang:?}") };
    assert!(matches!(failure, Failure::StartTimeout { .. }), "not a start timeout: {failure:?}");
}

#[test]
fn an_agent_whose_environment_is_of_an_older_generation_has_only_joined() {
    let status = |generation| status(RunState::Configured, generation);
    let AgentState::Status(idle) = status(FIRST) else { panic!("not a status") };
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
fn a_late_acknowledgement_does_not_undo_a_newer_status() {
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
fn a_late_status_does_not_undo_an_acknowledgement() {
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
    reported(crate::support::status(state, generation, (state == RunState::Exited).then(|| exit(3, 9))))
}

#[test]
fn the_last_words_of_an_ended_pod_tell_the_exit_and_the_generation() {
    let phase = |generation, current| {
        let words = LastWords { generation, exit: exit(3, 1), membership: None };
        let pod = PodState::ended(Some(words), "its agent ended");
        ReplicaPhase::of(&Observation { pod: Some(pod), ..Observation::NEW }, current)
    };
    assert_eq!(phase(Some(FIRST), None), Exited(FIRST, exit(3, 1)));
    assert_eq!(phase(Some(SECOND), Some(SECOND)), Exited(SECOND, exit(3, 1)));
    assert_eq!(
        phase(Some(FIRST), Some(SECOND)),
        ReplicaPhase::Lost(LostRun::broken("its agent ended")),
        "wrong phase of a replica with a run of an earlier start"
    );
    assert_eq!(
        phase(None, None),
        ReplicaPhase::Lost(LostRun::broken("its agent ended")),
        "wrong phase of a replica with a run of an unknown start"
    );
}

#[test]
fn an_out_of_memory_kill_of_a_container_ends_the_run_that_was_seen_in_it() {
    let outcome = ExitOutcome::OutOfMemory { limit: Some(1 << 30) };
    let report = ExitReport { outcome, ..exit(0, 1) };
    let words = LastWords { generation: None, exit: report.clone(), membership: None };
    let pod = Some(PodState::ended(Some(words), "its container was killed"));
    let phase = |agent| ReplicaPhase::of(&Observation { pod: pod.clone(), agent, ..Observation::NEW }, Some(FIRST));
    assert_eq!(phase(status(RunState::Running, FIRST)), Exited(FIRST, report.clone()));
    assert_eq!(phase(AgentState::Started(FIRST)), Exited(FIRST, report));
    let lost = ReplicaPhase::Lost(LostRun::broken("its container was killed"));
    assert_eq!(phase(AgentState::Silent), lost, "wrong phase after a kill before any run was observed");
}

#[test]
fn the_kill_of_an_agent_is_reported_instead_of_an_exit_of_its_script() {
    let words = LastWords {
        generation: None,
        exit: ExitReport { outcome: ExitOutcome::Signal(9), ..exit(0, 1) },
        membership: None,
    };
    let pod = PodState::ended(Some(words.clone()), "its container was killed");
    let phase =
        |agent| ReplicaPhase::of(&Observation { pod: Some(pod.clone()), agent, ..Observation::NEW }, Some(FIRST));
    let killed = ReplicaPhase::Lost(LostRun::broken("its agent was killed by signal 9 (SIGKILL)"));
    assert_eq!(phase(status(RunState::Running, FIRST)), killed);
    assert_eq!(
        phase(AgentState::Started(FIRST)),
        Exited(FIRST, words.exit),
        "wrong phase for an agent of the prototype, which exits with the status of its script"
    );
}

#[test]
fn a_gang_whose_pods_have_all_ended_gets_the_result_of_its_runs() {
    let ended = |code| {
        let words = LastWords { generation: Some(FIRST), exit: exit(code, 1), membership: None };
        let pod = PodState::ended(Some(words), "");
        ReplicaPhase::of(&Observation { pod: Some(pod), ..Observation::NEW }, None)
    };
    let (moved, _) = look(pending(), &found(&[ended(0), ended(0)]));
    assert_eq!(moved, stopping(Some(FIRST), Ending::Succeeded));
    let (moved, _) = look(pending(), &found(&[ended(0), ended(3)]));
    assert_eq!(moved, stopping(Some(FIRST), Ending::Failed(exited("worker-1", exit(3, 1)))));
}

#[test]
fn a_gang_fails_if_one_agent_was_not_configured_for_the_start_of_the_gang() {
    for forgetful in [Joined, ReplicaPhase::Requested] {
        let moved = look(pending(), &found(&[Running(FIRST), forgetful, Exited(FIRST, exit(0, 1))]));
        let (JobPhase::Stopping(Stop { generation, ending: Ending::Failed(failure), .. }), actions) = moved else {
            panic!("not stopping, although the agent would refuse a launch: {moved:?}")
        };
        let reason = "its agent takes no part in start 1.1, in which other replicas run".to_owned();
        assert_eq!(failure, Failure::ReplicaLost { replica: id("worker-1"), reason, loss: Loss::Disrupted });
        assert_eq!((generation, actions), (Some(FIRST), stop_with(Duration::ZERO)));
    }
}

#[test]
fn a_run_of_an_older_start_is_ended_before_the_next_start_if_an_agent_has_a_newer_environment() {
    let moved = look(pending(), &found(&[Running(FIRST), Configured(SECOND)]));
    let (JobPhase::Stopping(Stop { generation, ending, .. }), _) = moved else { panic!("not stopping: {moved:?}") };
    assert_eq!((generation, ending), (Some(SECOND), Ending::Regroup));
}

#[test]
fn a_run_that_somebody_stops_in_a_start_of_this_master_is_a_failure_after_a_takeover_too() {
    for (generation, is_failure) in [(FIRST, false), (SECOND, true)] {
        let gang = workers(&[Running(generation), Exited(generation, stopped(1))]);
        let (phase, _) = look(JobPhase::Running { generation, since: SOON }, &gang);
        let JobPhase::Stopping(Stop { ending, .. }) = &phase else { panic!("not stopping: {phase:?}") };
        assert_eq!(matches!(ending, Ending::Failed(_)), is_failure, "{phase:?}");
    }
}

#[test]
fn an_agent_that_refuses_its_new_master_is_the_loss_of_a_member() {
    let mut members = found(&[Running(FIRST), lost()]).places().to_vec();
    members[1] = observed(&members[1], |seen| (seen.pod, seen.agent) = (running_pod().pod, AgentState::Silent));
    let (phase, _) = look(pending(), &Gang::new(members, None));
    let JobPhase::Stopping(Stop { ending, .. }) = &phase else {
        panic!("waits for an agent that has failed: {phase:?}")
    };
    assert_eq!(*ending, Ending::Failed(was_lost("worker-1")));
}

#[test]
fn a_gang_fails_if_one_agent_only_knows_an_earlier_start_than_the_gang() {
    for other in [Configured(SECOND), Running(SECOND)] {
        let moved = look(pending(), &found(&[other, Exited(FIRST, stopped(1)), Running(SECOND)]));
        let reason = "its agent takes no part in start 2.1, in which other replicas run".to_owned();
        let lost = Failure::ReplicaLost { replica: id("worker-1"), reason, loss: Loss::Disrupted };
        let (JobPhase::Stopping(Stop { ending, .. }), actions) = moved else { panic!("not stopping: {moved:?}") };
        assert_eq!((ending, actions), (Ending::Failed(lost), stop_with(Duration::ZERO)));
    }
}

#[test]
fn a_cancel_before_all_agents_have_answered_stops_the_known_start() {
    for known in [Running(FIRST), Configured(FIRST)] {
        let moved = cancel(pending(), &found(&[known, Scheduled]));
        assert_eq!(moved, (stopping(Some(FIRST), Ending::Cancelled), stop_with(POLICY.rules.graces.cancel)));
    }
}

#[test]
fn a_run_that_is_reported_only_while_stopping_is_stopped() {
    let moved = look(stopping(None, Ending::Cancelled), &found(&[Joined, Running(FIRST)]));
    assert_eq!(moved, (stopping(Some(FIRST), Ending::Cancelled), stop_with(POLICY.rules.graces.cancel)));
}

#[test]
fn the_end_of_a_start_waits_for_agents_that_have_not_answered_yet() {
    let echo = || Exited(FIRST, exit(134, 9));
    let waiting = stopping(Some(FIRST), Ending::Failed(exited("worker-0", exit(134, 9))));
    let seen = found(&[echo(), Scheduled]);
    assert_eq!(look(waiting.clone(), &seen), (waiting.clone(), stop_with(Duration::ZERO)));

    let (phase, _) = look(waiting, &found(&[echo(), Exited(FIRST, exit(1, 5))]));
    let JobPhase::Releasing { result: JobResult::Failed { failure }, .. } = phase else { panic!("{phase:?}") };
    assert_eq!(failure, exited("worker-1", exit(1, 5)));
}

/// The first phase and actions of a master whose record lists the first start as failed.
fn begun_after_a_failure() -> (JobPhase, Vec<Action>) {
    begin(Known { first: SECOND, newest_failed: Some(FIRST), halted: None, result: None }, &POLICY, SINCE)
}

/// The start that the first master made after [`FIRST`] had failed.
const AGAIN: Generation = Generation { epoch: 1, sequence: 2 };

fn gathering_after_a_failure() -> JobPhase {
    let gathering = Gathering { next: SECOND, horizon: Some(AGAIN), ready_since: None, is_held_back: false };
    JobPhase::Pending { gathering, since: SINCE }
}

#[test]
fn runs_of_a_failed_start_on_record_are_ignored() {
    let (phase, actions) = begun_after_a_failure();
    assert_eq!((&phase, actions), (&gathering_after_a_failure(), vec![]));
    assert_eq!(phase.horizon(), Some(AGAIN));
    let exited = |generation| Observation { agent: status(RunState::Exited, generation), ..running_pod() };
    let phase_of = |seen: &Observation| ReplicaPhase::of(seen, phase.horizon());
    assert_eq!(phase_of(&exited(FIRST)), Joined);
    assert_eq!(phase_of(&exited(AGAIN)), Exited(AGAIN, exit(3, 9)));
    assert_eq!(look(phase, &found(&[Joined, Joined])), (configuring(), begin_start(SECOND, 2)));
}

#[test]
fn unfit_pods_of_a_recorded_failed_start_are_deleted_once() {
    let swept = look(gathering_after_a_failure(), &found(&[Joined, lost()]));
    assert_eq!(swept, (gathering_after_a_failure(), delete(&["worker-1"])));

    let (again, _) = look(gathering_after_a_failure(), &workers(&[Joined, lost()]));
    assert_eq!(ending_of(again), Ending::Failed(was_lost("worker-1")));
}

#[test]
fn no_pod_is_deleted_before_every_agent_has_answered() {
    let disrupted = ReplicaPhase::Lost(LostRun::disrupted("its node is drained"));
    for (phase, gone) in [(gathering_after_a_failure(), lost()), (pending(), disrupted.clone())] {
        assert_eq!(look(phase.clone(), &found(&[Scheduled, gone])), (phase, vec![]));
    }
    // The gang ran, so replacing the pod is not enough: the start has failed.
    let (phase, _) = look(pending(), &found(&[Running(FIRST), disrupted]));
    let JobPhase::Stopping(Stop { generation: Some(FIRST), ending: Ending::Failed(failure), .. }) = phase else {
        panic!("{phase:?}")
    };
    assert!(matches!(failure, Failure::ReplicaLost { loss: Loss::Disrupted, .. }), "{failure:?}");
}

#[test]
fn a_start_that_is_newer_than_the_failed_start_on_record_continues() {
    let moved = look(gathering_after_a_failure(), &found(&[Running(AGAIN), Running(AGAIN)]));
    assert_eq!(moved, (JobPhase::Running { generation: AGAIN, since: SOON }, vec![]));
}

#[test]
fn a_new_master_numbers_its_starts_higher_than_all_earlier_starts() {
    let numbered = |phase: JobPhase, gang: &Gang<'_>| {
        let (JobPhase::Stopping(Stop { next, .. }), _) = look(phase, gang) else { panic!("not stopping") };
        next
    };
    let old = Generation { epoch: 1, sequence: 7 };
    let own = Generation { epoch: 2, sequence: 4 };
    assert_eq!(numbered(pending(), &found(&[Running(old), lost()])), SECOND);
    assert_eq!(
        numbered(JobPhase::Running { generation: old, since: Duration::ZERO }, &workers(&[Running(old), lost()])),
        SECOND
    );
    assert_eq!(
        numbered(JobPhase::Running { generation: own, since: Duration::ZERO }, &workers(&[Running(own), lost()])),
        own.next()
    );
}

#[test]
fn a_stopping_job_takes_the_generation_that_an_agent_reports_late() {
    let ending = || Ending::Failed(was_lost("worker-1"));
    let moved = look(stopping(None, ending()), &found(&[Exited(FIRST, exit(0, 1)), lost()]));
    assert_eq!(moved, (stopping(Some(FIRST), ending()), stop_with(Duration::ZERO)));
}

#[test]
fn a_cancel_waits_for_runs_that_an_earlier_master_may_have_started() {
    let (waiting, _) = cancel(pending(), &found(&[Scheduled, Joined]));
    let (phase, _) = look(waiting.clone(), &found(&[Scheduled, Joined]));
    assert_eq!(phase, waiting);
    let (phase, _) = look(waiting, &found(&[Joined, Joined]));
    assert_eq!(phase, JobPhase::Releasing { result: JobResult::Cancelled, since: SOON });
}
