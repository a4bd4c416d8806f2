//! Tests what makes a job fail, and which failure the job reports. Also the effect of a cancel in each phase.

use std::time::Duration;

use job::gang::Place;
use job::observation::{LostRun, PodDeletion};
use job::phase::{Action, Ending, JobPhase, StartStage};
use job::policy::STOP_GRACE;
use job::replica::ReplicaPhase::{self, Configured, Exited, Joined, Requested, Running, Scheduled};
use protocol::failure::Failure;
use protocol::view::JobResult;

use crate::support::{
    FIRST, POLICY, SINCE, cancel, exit, exited, fixed, found, gang, look, lost, observed, pending, running, starting,
    stop_with, stopped, stopping, stopping_unstarted, was_lost, workers,
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
    let expected = stopping_unstarted(Ending::Failed(was_lost("worker-1")));
    let moved = look(pending(), &workers(&[Joined, lost(), Scheduled]));
    assert_eq!(moved, (expected, stop_with(Duration::ZERO)));
}

#[test]
fn the_job_fails_at_once_if_a_replica_fails_while_the_gang_is_started() {
    let (failed_run, crash) = (Exited(FIRST, exit(3, 9)), exited("worker-0", exit(3, 9)));
    for (stage, replicas, failure) in [
        (StartStage::Configuring, [Configured(FIRST), lost()], was_lost("worker-1")),
        (StartStage::Launching, [Configured(FIRST), lost()], was_lost("worker-1")),
        (StartStage::Launching, [failed_run.clone(), Configured(FIRST)], crash.clone()),
        // The failure is observed together with the last launch.
        (StartStage::Launching, [failed_run, Running(FIRST)], crash),
    ] {
        assert_eq!(look(starting(stage), &workers(&replicas)), failed(failure), "{stage:?}: {replicas:?}");
    }
}

#[test]
fn the_first_failure_of_any_replica_fails_the_job() {
    let (first, echo) = (Exited(FIRST, exit(1, 10)), Exited(FIRST, exit(134, 20)));
    let crash = |replica| exited(replica, exit(1, 10));
    for (members, failure) in [
        (vec![("worker-0", Running(FIRST)), ("worker-1", first.clone())], crash("worker-1")),
        (vec![("worker-0", Running(FIRST)), ("ps-0", first.clone())], crash("ps-0")),
        (vec![("worker-0", Running(FIRST)), ("evaluator-0", first.clone())], crash("evaluator-0")),
        (vec![("worker-0", lost()), ("worker-1", Running(FIRST))], was_lost("worker-0")),
        // Another failed replica is listed first.
        (vec![("worker-0", echo.clone()), ("worker-1", first.clone()), ("worker-2", echo)], crash("worker-1")),
        (vec![("worker-0", lost()), ("worker-1", first)], crash("worker-1")),
        // The master did not ask for this stop.
        (vec![("worker-0", Running(FIRST)), ("worker-1", Exited(FIRST, stopped(9)))], exited("worker-1", stopped(9))),
        (vec![("worker-0", Exited(FIRST, stopped(9))), ("worker-1", lost())], was_lost("worker-1")),
    ] {
        assert_eq!(look(running(), &gang(&members)), failed(failure), "{members:?}");
    }
}

#[test]
fn the_cause_of_a_failure_is_the_first_failure_that_all_reports_together_show() {
    let (first, crash) = (Exited(FIRST, exit(1, 10)), exited("worker-1", exit(1, 10)));
    let deleted = ReplicaPhase::Lost(LostRun::broken("its pod was deleted"));
    for (known, replicas, cause) in [
        // An earlier failure is learned later.
        (exited("worker-0", exit(134, 20)), vec![Exited(FIRST, exit(134, 20)), first.clone()], &crash),
        (was_lost("worker-0"), vec![lost(), first.clone()], &crash),
        // An echo is learned later.
        (crash.clone(), vec![Exited(FIRST, exit(134, 11)), first], &crash),
        // The master has stopped these runs, and has deleted this pod.
        (
            was_lost("worker-1"),
            vec![Exited(FIRST, stopped(1)), lost(), Exited(FIRST, stopped(2))],
            &was_lost("worker-1"),
        ),
        (was_lost("worker-1"), vec![deleted, lost()], &was_lost("worker-1")),
    ] {
        let result = conclusion(Ending::Failed(known), &replicas);
        assert_eq!(result, JobResult::Failed { failure: cause.clone() }, "{replicas:?}");
    }
}

#[test]
fn a_pod_that_the_master_deletes_after_a_script_has_left_is_not_the_cause() {
    let left = Exited(FIRST, exit(75, 10));
    let mut members = workers(&[lost(), left]).places().to_vec();
    let cause = |members: &[Place<'static>]| fixed(members.to_vec()).cause(exited("worker-1", exit(75, 10)));
    assert_eq!(cause(&members), was_lost("worker-0"));
    members[0] = observed(&members[0], |seen| seen.deletion = PodDeletion::Asked);
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
            "worker-0 was lost: its agent takes no part in start 1.1, in which other replicas run"
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
        let expected = (stopping_unstarted(Ending::Cancelled), stop_with(POLICY.rules.graces.cancel));
        assert_eq!(cancel(pending(), &seen), expected);
    }
}

#[test]
fn a_cancel_stops_a_starting_or_running_gang_with_grace() {
    let seen = workers(&[Configured(FIRST), Running(FIRST)]);
    for phase in [starting(StartStage::Configuring), starting(StartStage::Launching), running()] {
        let expected = (stopping(Ending::Cancelled), stop_with(POLICY.rules.graces.cancel));
        assert_eq!(cancel(phase, &seen), expected);
    }
}

#[test]
fn a_cancel_that_is_observed_together_with_the_last_exit_cancels_the_job() {
    let seen = workers(&[Exited(FIRST, exit(0, 1))]);
    assert_eq!(cancel(running(), &seen), (stopping(Ending::Cancelled), stop_with(POLICY.rules.graces.cancel)));
}

#[test]
fn a_cancel_changes_nothing_after_the_end_is_decided() {
    let seen = workers(&[Running(FIRST)]);
    let failure = exited("worker-0", exit(1, 1));
    let decided =
        [(stopping(Ending::Succeeded), STOP_GRACE), (stopping(Ending::Failed(failure.clone())), Duration::ZERO)];
    for (phase, grace) in decided {
        assert_eq!(cancel(phase.clone(), &seen), (phase, stop_with(grace)));
    }
    let releasing = JobPhase::Releasing { result: JobResult::Failed { failure }, since: SINCE };
    assert_eq!(cancel(releasing.clone(), &seen), (releasing, vec![Action::ReleasePods]));
    let finished = JobPhase::Finished { result: JobResult::Succeeded };
    assert_eq!(cancel(finished.clone(), &workers(&[lost()])), (finished, vec![]));
}
