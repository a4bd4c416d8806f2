//! Tests what makes a job fail, and which failure the job reports. Also the effect of a cancel in each phase.

use std::time::Duration;

use job::gang::Member;
use job::observation::{DeletedBy, LostRun};
use job::phase::{Action, Ending, JobPhase, StartStage, Stop};
use job::replica::ReplicaPhase::{self, Configured, Exited, Joined, Requested, Running, Scheduled};
use protocol::failure::Failure;
use protocol::view::JobResult;

use crate::support::{
    FIRST, POLICY, SINCE, SOON, cancel, exit, exited, fixed, found, gang, look, lost, pending, running, starting,
    stop_with, stopped, stopping, was_lost, workers,
};

/// The expected phase and actions after a failure: all runs are stopped without grace.
fn failed(failure: Failure) -> (JobPhase, Vec<Action>) {
    (stopping(Ending::Failed(failure)), stop_with(Duration::ZERO))
}

fn conclusion(ending: Ending, phases: &[ReplicaPhase]) -> JobResult {
    let (phase, _) = look(stopping(ending), &workers(phases));
    let JobPhase::Releasing { result, .. } = phase else { panic!("all replicas are dead, but the phase is {phase:?}") };
    result
}

#[test]
fn the_job_fails_at_once_if_a_pod_is_lost_before_the_gang_is_complete() {
    let ending = Ending::Failed(was_lost("worker-1"));
    let expected = JobPhase::Stopping(Stop {
        generation: None,
        horizon: None,
        next: FIRST,
        ending,
        since: SOON,
        grace: Duration::ZERO,
    });
    let stop = vec![Action::StopRuns { grace: Duration::ZERO }];
    assert_eq!(look(pending(), &workers(&[Joined, lost(), Scheduled])), (expected, stop));
}

#[test]
fn the_job_fails_at_once_if_a_pod_is_lost_while_the_gang_is_started() {
    for stage in [StartStage::Configuring, StartStage::Launching] {
        let moved = look(starting(stage), &workers(&[Configured(FIRST), lost()]));
        assert_eq!(moved, failed(was_lost("worker-1")), "{stage:?}");
    }
}

#[test]
fn the_job_fails_at_once_if_a_run_fails_before_all_have_started() {
    let moved = look(starting(StartStage::Launching), &workers(&[Exited(FIRST, exit(3, 9)), Configured(FIRST)]));
    assert_eq!(moved, failed(exited("worker-0", exit(3, 9))));
}

#[test]
fn the_job_fails_at_once_if_a_failure_is_observed_together_with_the_last_launch() {
    let moved = look(starting(StartStage::Launching), &workers(&[Exited(FIRST, exit(3, 9)), Running(FIRST)]));
    assert_eq!(moved, failed(exited("worker-0", exit(3, 9))));
}

#[test]
fn nothing_is_done_while_some_replicas_run_and_none_has_failed() {
    let seen = workers(&[Running(FIRST), Exited(FIRST, exit(0, 1)), Running(FIRST)]);
    assert_eq!(look(running(), &seen), (running(), vec![]));
}

#[test]
fn a_failed_run_fails_the_job() {
    let moved = look(running(), &workers(&[Running(FIRST), Exited(FIRST, exit(1, 9))]));
    assert_eq!(moved, failed(exited("worker-1", exit(1, 9))));
}

#[test]
fn a_lost_pod_fails_the_job() {
    let moved = look(running(), &workers(&[lost(), Running(FIRST)]));
    assert_eq!(moved, failed(was_lost("worker-0")));
}

#[test]
fn a_failed_parameter_server_or_evaluator_fails_the_job() {
    for name in ["ps-0", "evaluator-0"] {
        let seen = gang(&[("worker-0", Running(FIRST)), (name, Exited(FIRST, exit(1, 9)))]);
        assert_eq!(look(running(), &seen), failed(exited(name, exit(1, 9))), "{name}");
    }
}

#[test]
fn the_job_reports_the_earliest_failure_even_if_another_failed_replica_is_listed_first() {
    let echo = Exited(FIRST, exit(134, 20));
    let first = Exited(FIRST, exit(1, 10));
    let moved = look(running(), &workers(&[echo.clone(), first, echo]));
    assert_eq!(moved, failed(exited("worker-1", exit(1, 10))));
}

#[test]
fn an_exit_takes_precedence_over_a_lost_pod() {
    let moved = look(running(), &workers(&[lost(), Exited(FIRST, exit(1, 10))]));
    assert_eq!(moved, failed(exited("worker-1", exit(1, 10))));
}

#[test]
fn the_job_fails_if_a_run_is_stopped_although_the_master_did_not_ask() {
    let moved = look(running(), &workers(&[Running(FIRST), Exited(FIRST, stopped(9))]));
    assert_eq!(moved, failed(exited("worker-1", stopped(9))));
}

#[test]
fn a_lost_pod_takes_precedence_over_a_stopped_run() {
    let moved = look(running(), &workers(&[Exited(FIRST, stopped(9)), lost()]));
    assert_eq!(moved, failed(was_lost("worker-1")));
}

#[test]
fn an_earlier_failure_that_is_learned_later_becomes_the_cause() {
    let known = Ending::Failed(exited("worker-0", exit(134, 20)));
    let result = conclusion(known, &[Exited(FIRST, exit(134, 20)), Exited(FIRST, exit(1, 10))]);
    assert_eq!(result, JobResult::Failed { failure: exited("worker-1", exit(1, 10)) });
}

#[test]
fn an_echo_that_is_learned_later_is_not_the_cause() {
    let known = Ending::Failed(exited("worker-1", exit(1, 10)));
    let result = conclusion(known, &[Exited(FIRST, exit(134, 11)), Exited(FIRST, exit(1, 10))]);
    assert_eq!(result, JobResult::Failed { failure: exited("worker-1", exit(1, 10)) });
}

#[test]
fn an_exit_that_is_learned_later_takes_precedence_over_a_lost_pod() {
    let result = conclusion(Ending::Failed(was_lost("worker-0")), &[lost(), Exited(FIRST, exit(1, 10))]);
    assert_eq!(result, JobResult::Failed { failure: exited("worker-1", exit(1, 10)) });
}

#[test]
fn a_run_is_not_a_failure_if_the_master_stopped_it() {
    let known = || Ending::Failed(was_lost("worker-1"));
    let result = conclusion(known(), &[Exited(FIRST, stopped(1)), lost(), Exited(FIRST, stopped(2))]);
    assert_eq!(result, JobResult::Failed { failure: was_lost("worker-1") });
}

#[test]
fn a_pod_that_the_master_deletes_while_stopping_is_not_the_cause() {
    let deleted = ReplicaPhase::Lost(LostRun::broken("its pod was deleted"));
    let result = conclusion(Ending::Failed(was_lost("worker-1")), &[deleted, lost()]);
    assert_eq!(result, JobResult::Failed { failure: was_lost("worker-1") });
}

#[test]
fn a_pod_that_the_master_deletes_after_a_script_has_left_is_not_the_cause() {
    let left = Exited(FIRST, exit(75, 10));
    let mut members = workers(&[lost(), left]).places().to_vec();
    let cause = |members: &[Member]| fixed(members.to_vec()).cause(exited("worker-1", exit(75, 10)));
    assert_eq!(cause(&members), was_lost("worker-0"));
    members[0].deleted_by = DeletedBy::ThisMaster;
    assert_eq!(cause(&members), exited("worker-1", exit(75, 10)));
    members[0].phase = Exited(FIRST, exit(1, 9));
    assert_eq!(cause(&members), exited("worker-0", exit(1, 9)), "the script had failed before its pod was deleted");
}

#[test]
fn a_script_that_left_is_not_the_cause_if_another_member_has_lost_its_pod_before_this_master_began() {
    let left = || exited("worker-1", exit(75, 10));
    let cause = |other, known| found(&[other, Exited(FIRST, exit(75, 10))]).cause(known);
    for new in [Requested, Scheduled, Joined] {
        let cause = cause(new, left());
        assert_eq!(
            cause.to_string(),
            "worker-0 was lost: its pod takes no part in start 1.1, in which other replicas run"
        );
    }
    assert_eq!(cause(Exited(FIRST, stopped(11)), left()), left());
    assert_eq!(cause(lost(), left()), was_lost("worker-0"));
    assert_eq!(cause(Joined, exited("worker-1", exit(3, 10))), exited("worker-1", exit(3, 10)));
}

#[test]
fn a_failure_during_the_stop_does_not_change_a_success_or_a_cancel() {
    let dead = [Exited(FIRST, exit(1, 1)), Exited(FIRST, stopped(2)), lost()];
    assert_eq!(conclusion(Ending::Succeeded, &dead), JobResult::Succeeded);
    assert_eq!(conclusion(Ending::Cancelled, &dead), JobResult::Cancelled);
}

#[test]
fn a_cancel_before_the_first_start_stops_the_job() {
    for seen in [workers(&[Scheduled, Joined]), workers(&[Joined, Joined])] {
        let stopping = JobPhase::Stopping(Stop {
            generation: None,
            horizon: None,
            next: FIRST,
            ending: Ending::Cancelled,
            since: SOON,
            grace: POLICY.stop_grace,
        });
        let stop = vec![Action::StopRuns { grace: POLICY.stop_grace }];
        assert_eq!(cancel(pending(), &seen), (stopping, stop));
    }
}

#[test]
fn a_cancel_stops_a_starting_or_running_gang_with_grace() {
    let seen = workers(&[Configured(FIRST), Running(FIRST)]);
    for phase in [starting(StartStage::Configuring), starting(StartStage::Launching), running()] {
        let expected = (stopping(Ending::Cancelled), stop_with(POLICY.stop_grace));
        assert_eq!(cancel(phase, &seen), expected);
    }
}

#[test]
fn a_cancel_that_is_observed_together_with_the_last_exit_cancels_the_job() {
    let seen = workers(&[Exited(FIRST, exit(0, 1))]);
    assert_eq!(cancel(running(), &seen), (stopping(Ending::Cancelled), stop_with(POLICY.stop_grace)));
}

#[test]
fn a_cancel_changes_nothing_after_the_end_is_decided() {
    let seen = workers(&[Running(FIRST)]);
    let failure = exited("worker-0", exit(1, 1));
    let decided =
        [(stopping(Ending::Succeeded), POLICY.stop_grace), (stopping(Ending::Failed(failure.clone())), Duration::ZERO)];
    for (phase, grace) in decided {
        assert_eq!(cancel(phase.clone(), &seen), (phase, stop_with(grace)));
    }
    let releasing = JobPhase::Releasing { result: JobResult::Failed { failure }, since: SINCE };
    assert_eq!(cancel(releasing.clone(), &seen), (releasing, vec![Action::ReleasePods]));
    let finished = JobPhase::Finished { result: JobResult::Succeeded };
    assert_eq!(cancel(finished.clone(), &workers(&[lost()])), (finished, vec![]));
}
