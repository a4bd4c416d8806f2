//! Tests of the conditions of a job's success, and of the phases from the decision to end a job until it is finished.

use std::time::Duration;

use job::gang::{Gang, Member};
use job::observation::DeletedBy::ThisMaster;
use job::observation::Presence::{self, Ended, Live, Occupied};
use job::phase::{Action, Ending, JobEvent, JobPhase, PodSelection, Stop};
use job::policy::{Policy, SuccessRule};
use job::replica::ReplicaPhase;
use job::replica::ReplicaPhase::{Configured, Exited, Joined, Running, Scheduled};
use protocol::view::JobResult;

use crate::support::{
    FIRST, POLICY, SINCE, SOON, exit, exited, fixed, gang, id, look, look_at, lost, member, running, seen, step,
    stop_with, stopped, stopping, workers,
};

fn succeeded() -> (JobPhase, Vec<Action>) {
    (stopping(Ending::Succeeded), stop_with(POLICY.stop_grace))
}

/// One step that observes the gang of a job whose success depends only on `decider`.
fn look_where_one_decides(decider: &str, gang: &Gang) -> (JobPhase, Vec<Action>) {
    let policy = Policy { success: SuccessRule::Decider(id(decider)), ..POLICY };
    step(running(), JobEvent::Observed, seen(gang, &policy, SOON))
}

fn with_pods(pods: &[Presence]) -> Gang {
    let phase = |index| Exited(FIRST, exit(0, index));
    let ended = |(index, pod): (usize, &Presence)| member(&format!("worker-{index}"), phase(index as u64), *pod);
    fixed(pods.iter().enumerate().map(ended).collect())
}

#[test]
fn all_reduce_succeeds_when_every_replica_that_trains_has_succeeded() {
    let well = || Exited(FIRST, exit(0, 1));
    let seen = gang(&[("chief-0", well()), ("worker-0", well()), ("worker-1", well())]);
    assert_eq!(look(running(), &seen), succeeded());
    for slow in ["chief-0", "worker-0", "worker-1"] {
        let members = ["chief-0", "worker-0", "worker-1"];
        let seen = gang(&members.map(|name| (name, if name == slow { Running(FIRST) } else { well() })));
        assert_eq!(look(running(), &seen), (running(), vec![]), "the phase has changed although {slow} still trains");
    }
}

#[test]
fn success_does_not_wait_for_an_evaluator() {
    let seen = gang(&[("worker-0", Exited(FIRST, exit(0, 1))), ("evaluator-0", Running(FIRST))]);
    assert_eq!(look(running(), &seen), succeeded());
}

#[test]
fn the_success_of_an_evaluator_is_not_enough() {
    let seen = gang(&[("worker-0", Running(FIRST)), ("evaluator-0", Exited(FIRST, exit(0, 1)))]);
    assert_eq!(look(running(), &seen), (running(), vec![]));
}

#[test]
fn a_parameter_server_job_succeeds_as_soon_as_its_decider_has_succeeded() {
    for decider in ["chief-0", "worker-0"] {
        let seen =
            gang(&[(decider, Exited(FIRST, exit(0, 1))), ("worker-1", Running(FIRST)), ("ps-0", Running(FIRST))]);
        assert_eq!(look_where_one_decides(decider, &seen), succeeded(), "{decider}");
    }
}

#[test]
fn a_parameter_server_job_waits_for_its_decider() {
    let well = || Exited(FIRST, exit(0, 1));
    let seen = gang(&[("chief-0", Running(FIRST)), ("worker-0", well()), ("worker-1", well()), ("ps-0", well())]);
    assert_eq!(look_where_one_decides("chief-0", &seen), (running(), vec![]));
}

#[test]
fn a_success_of_the_decider_takes_precedence_over_later_failures() {
    let seen = gang(&[("chief-0", Exited(FIRST, exit(0, 5))), ("worker-0", Exited(FIRST, exit(1, 6)))]);
    assert_eq!(look_where_one_decides("chief-0", &seen), succeeded());
}

#[test]
fn the_job_fails_if_its_decider_fails() {
    let seen = gang(&[("chief-0", Exited(FIRST, exit(7, 5))), ("worker-0", Running(FIRST))]);
    let ending = Ending::Failed(exited("chief-0", exit(7, 5)));
    assert_eq!(look_where_one_decides("chief-0", &seen), (stopping(ending), stop_with(Duration::ZERO)));
}

#[test]
fn the_end_waits_until_every_run_is_dead() {
    for alive in [Running(FIRST), Configured(FIRST)] {
        let seen = workers(&[Exited(FIRST, exit(0, 1)), alive.clone()]);
        let phase = stopping(Ending::Succeeded);
        assert_eq!(look(phase.clone(), &seen), (phase, stop_with(POLICY.stop_grace)), "{alive:?}");
    }
}

#[test]
fn the_end_does_not_wait_for_a_replica_that_was_never_configured_or_is_lost() {
    for idle in [Joined, ReplicaPhase::Requested, lost()] {
        let (phase, _) = look(stopping(Ending::Cancelled), &workers(&[Exited(FIRST, stopped(1)), idle]));
        assert_eq!(phase, JobPhase::Releasing { result: JobResult::Cancelled, since: SOON });
    }
}

#[test]
fn before_the_first_start_the_end_does_not_wait_for_a_silent_agent() {
    let phase = JobPhase::Stopping(Stop {
        generation: None,
        horizon: None,
        next: FIRST,
        ending: Ending::Cancelled,
        since: SINCE,
        grace: POLICY.stop_grace,
    });
    let (phase, _) = look(phase, &workers(&[Joined, Scheduled]));
    assert_eq!(phase, JobPhase::Releasing { result: JobResult::Cancelled, since: SOON });
}

#[test]
fn the_result_is_written_before_the_pods_are_released() {
    let results = [
        (Ending::Succeeded, JobResult::Succeeded),
        (Ending::Cancelled, JobResult::Cancelled),
        (Ending::Failed(exited("worker-0", exit(3, 1))), JobResult::Failed { failure: exited("worker-0", exit(3, 1)) }),
    ];
    for (ending, result) in results {
        let moved = look(stopping(ending), &workers(&[Exited(FIRST, exit(3, 1)), Exited(FIRST, stopped(2))]));
        let releasing = JobPhase::Releasing { result: result.clone(), since: SOON };
        assert_eq!(moved, (releasing, vec![Action::Conclude(result), Action::ReleasePods]));
    }
}

#[test]
fn pods_whose_runs_do_not_end_in_time_are_deleted() {
    let phase = stopping(Ending::Cancelled);
    let seen = workers(&[Running(FIRST), Exited(FIRST, stopped(1))]);
    let overdue = SOON + POLICY.stop_grace + POLICY.release_timeout;
    let waiting = look_at(overdue - Duration::from_nanos(1), phase.clone(), &seen);
    assert_eq!(waiting, (phase.clone(), stop_with(POLICY.stop_grace)));
    assert_eq!(look_at(overdue, phase.clone(), &seen), (phase, vec![Action::DeletePods(PodSelection::Unended)]));
}

#[test]
fn a_job_is_finished_when_its_last_pod_has_ended() {
    let releasing = JobPhase::Releasing { result: JobResult::Succeeded, since: SINCE };
    let waiting = look(releasing.clone(), &with_pods(&[Ended, Live]));
    assert_eq!(waiting, (releasing.clone(), vec![Action::ReleasePods]));
    let finished = JobPhase::Finished { result: JobResult::Succeeded };
    assert_eq!(look(releasing, &with_pods(&[Ended, Ended])), (finished, vec![]));
}

#[test]
fn pods_that_do_not_end_when_they_are_released_are_deleted() {
    let releasing = JobPhase::Releasing { result: JobResult::Succeeded, since: SINCE };
    let overdue = SINCE + POLICY.release_timeout;
    let moved = look_at(overdue, releasing.clone(), &with_pods(&[Live]));
    assert_eq!(moved, (releasing, vec![Action::DeletePods(PodSelection::Live)]));
}

#[test]
fn a_job_is_not_finished_before_the_deletion_of_a_pod_with_other_running_containers_is_requested() {
    let releasing = JobPhase::Releasing { result: JobResult::Succeeded, since: SINCE };
    let waiting = look(releasing.clone(), &with_pods(&[Ended, Occupied]));
    assert_eq!(waiting, (releasing.clone(), vec![Action::ReleasePods]));
    let going = Member { deleted_by: ThisMaster, ..with_pods(&[Occupied]).places()[0].clone() };
    let finished = JobPhase::Finished { result: JobResult::Succeeded };
    let deleting = vec![Action::DeletePods(PodSelection::Live)];
    assert_eq!(look(releasing, &fixed(vec![going.clone()])), (finished.clone(), vec![]));
    assert_eq!(look(finished.clone(), &fixed(vec![going])), (finished, deleting));
}

#[test]
fn a_finished_job_does_not_change() {
    let finished = JobPhase::Finished { result: JobResult::Succeeded };
    let failed = member("worker-0", Exited(FIRST, exit(1, 1)), Ended);
    for seen in [workers(&[lost()]), fixed(vec![failed]), with_pods(&[Ended, Ended])] {
        assert_eq!(look_at(SINCE * 1000, finished.clone(), &seen), (finished.clone(), vec![]));
    }
}

#[test]
fn a_live_pod_of_a_finished_job_is_deleted() {
    let finished = JobPhase::Finished { result: JobResult::Cancelled };
    assert_eq!(
        look(finished.clone(), &with_pods(&[Ended, Live])),
        (finished, vec![Action::DeletePods(PodSelection::Live)])
    );
}
