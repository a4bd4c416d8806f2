//! Tests of the phases from the creation of pods until the gang runs.

use std::time::Duration;

use job::observation::Presence::{Absent, Live};
use job::phase::{Action, Attempt, Ending, Halt, JobEvent, JobPhase, Restart, StartStage, Stop, next_look};
use job::policy::Policy;
use job::replica::ReplicaPhase::{self, Configured, Exited, Joined, Requested, Running, Scheduled};
use protocol::failure::Failure;
use protocol::view::{JobResult, JobState};

use crate::support::{
    FIRST, POLICY, SINCE, SOON, absent, begin_start, begun, create, exit, exited, id, look, look_at, lost, pending,
    restarting, running, seen, starting, step, stop_with, stopping, with_pods, workers,
};

fn starting_since(since: Duration, stage: StartStage) -> JobPhase {
    JobPhase::Starting(Attempt { generation: FIRST, stage, since, pushes: 0 })
}

#[test]
fn a_new_job_creates_the_pods_that_do_not_exist() {
    assert_eq!(begun(FIRST, None, SINCE), (pending(), vec![]));
    let gang = with_pods(&[(Requested, Absent), (Requested, Live), (Joined, Live), (Requested, Absent)]);
    assert_eq!(look(pending(), &gang), (pending(), create(&["worker-0", "worker-3"])));
}

#[test]
fn a_requested_pod_that_is_not_listed_in_time_is_requested_again() {
    let gang = with_pods(&[(Joined, Live), (Requested, Absent)]);
    let policy = POLICY;
    let seen = seen(&gang, &policy, SOON);
    let (phase, actions) = step(pending(), JobEvent::Observed, seen);
    assert_eq!(next_look(&phase, &actions, seen), Some(SOON + policy.release_timeout));
}

#[test]
fn a_suspended_job_creates_no_pods() {
    let suspended = Policy { is_suspended: true, ..POLICY };
    let (phase, actions) = step(pending(), JobEvent::Observed, seen(&absent(2), &suspended, SOON));
    assert_eq!(actions, stop_with(POLICY.stop_grace), "{phase:?}");
}

#[test]
fn a_job_whose_result_is_on_record_begins_by_releasing_its_pods() {
    for result in [JobResult::Succeeded, JobResult::Cancelled] {
        let begun = begun(FIRST, Some(result.clone()), SINCE);
        assert_eq!(begun, (JobPhase::Releasing { result, since: SINCE }, vec![Action::ReleasePods]));
    }
}

#[test]
fn a_gang_is_not_started_before_its_last_agent_has_answered() {
    for late in [Requested, Scheduled] {
        assert_eq!(look(pending(), &workers(&[Joined, late, Joined])), (pending(), vec![]));
    }
}

#[test]
fn new_code_begins_the_next_start_while_the_agents_are_configured_and_not_while_scripts_are_started() {
    let pushed = Policy { pushes: 1, ..POLICY };
    let gang = workers(&[Configured(FIRST), Joined]);
    let at = |stage| step(starting(stage), JobEvent::Observed, seen(&gang, &pushed, SOON));
    let next = JobPhase::Restarting(Restart { next: FIRST.next(), is_empty: false, until: SOON, since: SOON });
    assert_eq!(at(StartStage::Configuring), (next, vec![]));
    assert_eq!(at(StartStage::Launching), (starting(StartStage::Launching), vec![]));
}

#[test]
fn a_complete_gang_is_configured() {
    let moved = look(pending(), &workers(&[Joined, Joined]));
    assert_eq!(moved, (starting_since(SOON, StartStage::Configuring), begin_start(FIRST, 2)));
}

#[test]
fn a_gang_that_is_complete_exactly_at_the_start_timeout_is_configured() {
    let last = SINCE + POLICY.start_timeout;
    let moved = look_at(last, pending(), &workers(&[Joined, Joined]));
    assert_eq!(moved, (starting_since(last, StartStage::Configuring), begin_start(FIRST, 2)));
}

#[test]
fn nothing_is_launched_before_all_agents_have_acknowledged_their_environments() {
    let waiting = starting(StartStage::Configuring);
    let seen = workers(&[Configured(FIRST), Joined, Configured(FIRST)]);
    assert_eq!(look(waiting.clone(), &seen), (waiting, vec![]));
}

#[test]
fn all_replicas_are_launched_when_all_agents_have_acknowledged_their_environments() {
    let moved = look(starting(StartStage::Configuring), &workers(&[Configured(FIRST), Configured(FIRST)]));
    assert_eq!(moved, (starting_since(SOON, StartStage::Launching), vec![Action::Launch(FIRST)]));
}

#[test]
fn a_launch_is_not_ordered_a_second_time() {
    let waiting = starting(StartStage::Launching);
    let seen = workers(&[Running(FIRST), Configured(FIRST)]);
    assert_eq!(look(waiting.clone(), &seen), (waiting, vec![]));
}

#[test]
fn the_job_runs_when_all_replicas_run() {
    let moved = look(starting(StartStage::Launching), &workers(&[Running(FIRST), Running(FIRST)]));
    assert_eq!(moved, (running(), vec![]));
}

#[test]
fn a_replica_that_succeeds_before_all_have_started_does_not_stop_the_start() {
    let ended = Exited(FIRST, exit(0, 1));
    let waiting = starting(StartStage::Launching);
    assert_eq!(look(waiting.clone(), &workers(&[ended.clone(), Configured(FIRST)])), (waiting.clone(), vec![]));
    assert_eq!(look(waiting, &workers(&[ended, Running(FIRST)])), (running(), vec![]));
}

#[test]
fn a_gang_that_succeeds_before_it_was_seen_running_has_succeeded() {
    let ended = Exited(FIRST, exit(0, 1));
    let moved = look(starting(StartStage::Launching), &workers(&[ended.clone(), ended]));
    assert_eq!(moved, (stopping(Ending::Succeeded), stop_with(POLICY.stop_grace)));
}

#[test]
fn a_gang_that_is_not_complete_in_time_fails_and_names_the_missing_replicas() {
    let seen = workers(&[Joined, Scheduled, Requested]);
    let deadline = SINCE + POLICY.start_timeout;
    assert_eq!(look_at(deadline - Duration::from_nanos(1), pending(), &seen), (pending(), vec![]));

    let failure =
        Failure::StartTimeout { missing: vec![id("worker-1"), id("worker-2")], after_seconds: 600, reason: None };
    let ending = Ending::Failed(failure);
    let stopping = JobPhase::Stopping(Stop {
        generation: None,
        horizon: None,
        next: FIRST,
        ending,
        since: deadline,
        grace: Duration::ZERO,
    });
    let stop = vec![Action::StopRuns { grace: Duration::ZERO }];
    assert_eq!(look_at(deadline, pending(), &seen), (stopping, stop));
}

#[test]
fn each_phase_of_a_job_without_a_deadline_has_the_expected_time_limit() {
    let deadline = |phase: JobPhase| phase.deadline(&POLICY).map(|deadline| deadline.as_secs());
    let releasing = JobPhase::Releasing { result: JobResult::Succeeded, since: SINCE };
    assert_eq!(deadline(pending()), Some(700));
    assert_eq!(deadline(starting(StartStage::Configuring)), Some(700));
    assert_eq!(deadline(starting(StartStage::Launching)), Some(700));
    assert_eq!(deadline(restarting()), Some(105));
    assert_eq!(deadline(running()), None);
    assert_eq!(deadline(stopping(Ending::Cancelled)), Some(SOON.as_secs() + 3 + 20));
    assert_eq!(deadline(stopping(Ending::Succeeded)), Some(SOON.as_secs() + 3 + 20));
    let failed = Ending::Failed(exited("worker-0", exit(1, 9)));
    assert_eq!(deadline(stopping(failed)), Some(SOON.as_secs() + 20));
    assert_eq!(deadline(stopping(Ending::Regroup)), Some(SOON.as_secs() + 3 + 20));
    assert_eq!(deadline(releasing), Some(120));
    assert_eq!(deadline(JobPhase::Finished { result: JobResult::Succeeded }), None);
}

#[test]
fn each_phase_is_shown_to_users_as_the_expected_state() {
    let failure = Failure::StartTimeout { missing: vec![], after_seconds: 1, reason: None };
    let halt = Halt {
        generation: FIRST,
        next: FIRST.next(),
        failure: failure.clone(),
        fingerprint: None,
        pushes: 0,
        until: SOON,
    };
    let shown = [
        (pending(), JobState::Pending),
        (starting(StartStage::Launching), JobState::Starting),
        (running(), JobState::Running),
        (restarting(), JobState::Restarting),
        (stopping(Ending::Cancelled), JobState::Stopping),
        (JobPhase::Releasing { result: JobResult::Succeeded, since: SINCE }, JobState::Stopping),
        (JobPhase::Suspended { next: FIRST.next() }, JobState::Suspended),
        (JobPhase::Halted(halt), JobState::Halted),
        (JobPhase::Finished { result: JobResult::Succeeded }, JobState::Succeeded),
        (JobPhase::Finished { result: JobResult::Cancelled }, JobState::Cancelled),
        (JobPhase::Finished { result: JobResult::Failed { failure } }, JobState::Failed),
    ];
    for (phase, state) in shown {
        assert_eq!(phase.state(), state, "{phase:?}");
    }
}

#[test]
fn the_phase_of_a_replica_tells_what_the_replica_has_reached() {
    // The columns are: joined, configured, launched, dead.
    let reached: [(ReplicaPhase, [bool; 4]); 7] = [
        (Requested, [false, false, false, false]),
        (Scheduled, [false, false, false, false]),
        (Joined, [true, false, false, false]),
        (Configured(FIRST), [true, true, false, false]),
        (Running(FIRST), [true, true, true, false]),
        (Exited(FIRST, exit(1, 1)), [true, true, true, true]),
        (lost(), [false, false, false, true]),
    ];
    for (phase, expected) in reached {
        let seen = [phase.has_joined(), phase.was_configured(), phase.was_launched(), phase.is_dead()];
        assert_eq!(seen, expected, "{phase:?}");
    }
}
