//! Tests of the conditions of a job's success, and of the phases from the decision to end a job until it is finished.

use std::time::Duration;

use job::gang::Gang;
use job::observation::PodDeletion::Asked;
use job::observation::Presence::{self, Ended, Live, Occupied};
use job::phase::{Action, Ending, JobEvent, JobPhase, PodSelection};
use job::policy::{RELEASE_TIMEOUT, STOP_GRACE, SuccessRule};
use job::replica::ReplicaPhase;
use job::replica::ReplicaPhase::{Configured, Exited, Joined, Running, Scheduled};
use protocol::view::JobResult;

use crate::support::{
    FIRST, POLICY, SINCE, SOON, changed, exit, exited, fixed, gang, grace_of, id, look, look_at, lost, observed, place,
    running, seen, step, stop_with, stopped, stopping, stopping_unstarted, with_restarts, workers,
};

fn succeeded() -> (JobPhase, Vec<Action>) {
    (stopping(Ending::Succeeded), stop_with(STOP_GRACE))
}

/// One step that observes the gang of a job with this condition of success.
fn look_by(success: SuccessRule, gang: &Gang<'_>) -> (JobPhase, Vec<Action>) {
    let policy = changed(POLICY, |policy| policy.rules.success = success);
    step(running(), JobEvent::Observed, seen(gang, &policy, SOON))
}

fn with_pods(pods: &[Presence]) -> Gang<'static> {
    let phase = |index| Exited(FIRST, exit(0, index));
    let ended = |(index, pod): (usize, &Presence)| place(&format!("worker-{index}"), phase(index as u64), *pod);
    fixed(pods.iter().enumerate().map(ended).collect())
}

#[test]
fn a_job_succeeds_when_the_replicas_that_decide_have_succeeded() {
    let (well, runs) = (&Exited(FIRST, exit(0, 5)), &Running(FIRST));
    let later_failure = &Exited(FIRST, exit(1, 6));
    let [chief, worker] = ["chief-0", "worker-0"].map(|name| SuccessRule::Decider(id(name)));
    let all = SuccessRule::AllThatTrain;
    for (rule, members, has_succeeded) in [
        (all, vec![("chief-0", well), ("worker-0", well), ("worker-1", well)], true),
        (all, vec![("chief-0", runs), ("worker-0", well), ("worker-1", well)], false),
        (all, vec![("chief-0", well), ("worker-0", runs), ("worker-1", well)], false),
        (all, vec![("chief-0", well), ("worker-0", well), ("worker-1", runs)], false),
        // An evaluator does not train.
        (all, vec![("worker-0", well), ("evaluator-0", runs)], true),
        (all, vec![("worker-0", runs), ("evaluator-0", well)], false),
        (chief, vec![("chief-0", well), ("worker-1", runs), ("ps-0", runs)], true),
        (worker, vec![("worker-0", well), ("worker-1", runs), ("ps-0", runs)], true),
        (chief, vec![("chief-0", runs), ("worker-0", well), ("worker-1", well), ("ps-0", well)], false),
        (chief, vec![("chief-0", well), ("worker-0", later_failure)], true),
    ] {
        let seen = gang(&members.iter().map(|(name, phase)| (*name, (*phase).clone())).collect::<Vec<_>>());
        let expected = if has_succeeded { succeeded() } else { (running(), vec![]) };
        assert_eq!(look_by(rule, &seen), expected, "{rule:?}: {members:?}");
    }
}

#[test]
fn the_job_fails_if_its_decider_fails() {
    let seen = gang(&[("chief-0", Exited(FIRST, exit(7, 5))), ("worker-0", Running(FIRST))]);
    let ending = Ending::Failed(exited("chief-0", exit(7, 5)));
    let moved = look_by(SuccessRule::Decider(id("chief-0")), &seen);
    assert_eq!(moved, (stopping(ending), stop_with(Duration::ZERO)));
}

#[test]
fn the_end_and_the_next_start_wait_until_every_run_is_dead() {
    let failed = Ending::Failed(exited("worker-0", exit(1, 9)));
    let restarting = with_restarts(3);
    for (ending, policy) in [(Ending::Succeeded, &POLICY), (failed, &restarting)] {
        for alive in [Running(FIRST), Configured(FIRST)] {
            let gang = workers(&[Exited(FIRST, exit(1, 9)), alive.clone()]);
            let waiting = (stopping(ending.clone()), stop_with(grace_of(&ending)));
            let moved = step(stopping(ending.clone()), JobEvent::Observed, seen(&gang, policy, SOON));
            assert_eq!(moved, waiting, "{alive:?}");
        }
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
    let (phase, _) = look(stopping_unstarted(Ending::Cancelled), &workers(&[Joined, Scheduled]));
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
    let overdue = SOON + POLICY.rules.graces.cancel + RELEASE_TIMEOUT;
    let waiting = look_at(overdue - Duration::from_nanos(1), phase.clone(), &seen);
    assert_eq!(waiting, (phase.clone(), stop_with(POLICY.rules.graces.cancel)));
    assert_eq!(look_at(overdue, phase.clone(), &seen), (phase, vec![Action::DeletePods(PodSelection::Unended)]));
}

#[test]
fn a_job_is_finished_when_its_last_pod_has_ended_and_pods_that_do_not_end_are_deleted() {
    let releasing = || JobPhase::Releasing { result: JobResult::Succeeded, since: SINCE };
    let finished = || JobPhase::Finished { result: JobResult::Succeeded };
    let deleting = || vec![Action::DeletePods(PodSelection::Live)];
    let (overdue, long_after) = (SINCE + RELEASE_TIMEOUT, SINCE * 1000);
    let occupied = with_pods(&[Occupied]);
    let going = || fixed(vec![observed(&occupied.places()[0], |seen| seen.deletion = Asked)]);
    for (now, phase, gang, expected) in [
        (SOON, releasing(), with_pods(&[Ended, Live]), (releasing(), vec![Action::ReleasePods])),
        (SOON, releasing(), with_pods(&[Ended, Ended]), (finished(), vec![])),
        (overdue, releasing(), with_pods(&[Live]), (releasing(), deleting())),
        // While other containers run, the job ends only after the deletion of their pod was requested.
        (SOON, releasing(), with_pods(&[Ended, Occupied]), (releasing(), vec![Action::ReleasePods])),
        (SOON, releasing(), going(), (finished(), vec![])),
        (SOON, finished(), going(), (finished(), deleting())),
        (SOON, finished(), with_pods(&[Ended, Live]), (finished(), deleting())),
        (long_after, finished(), with_pods(&[Ended, Ended]), (finished(), vec![])),
        (long_after, finished(), workers(&[lost()]), (finished(), vec![])),
        (
            long_after,
            finished(),
            fixed(vec![place("worker-0", Exited(FIRST, exit(1, 1)), Ended)]),
            (finished(), vec![]),
        ),
    ] {
        assert_eq!(look_at(now, phase.clone(), &gang), expected, "{phase:?}: {gang:?}");
    }
}
