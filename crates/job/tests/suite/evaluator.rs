//! Tests of evaluators: they start again alone, and may go on for some time after the success of the training.

use std::time::Duration;

use job::gang::{Gang, Place};
use job::observation::LostRun;
use job::observation::Presence::{self, Absent, Live};
use job::phase::{Action, Ending, JobEvent, JobPhase, PodSelection, next_look};
use job::policy::{Policy, RELEASE_TIMEOUT};
use job::replica::ReplicaPhase::{self, Configured, Exited, Joined, Lost, Requested, Running};
use protocol::run_policy::RestartRule;
use protocol::view::JobResult;

use crate::support::{
    FIRST, POLICY, SOON, changed, create, delete, ending_of, exit, exited, fixed, id, lost, place, running, seen, step,
    stopped, was_lost, with_restarts,
};

/// A worker and an evaluator of a running gang. The evaluator has failed so often before.
fn beside(worker: ReplicaPhase, evaluator: ReplicaPhase, pod: Presence, failed_alone: u32) -> Gang<'static> {
    fixed(vec![place("worker-0", worker, Live), Place { failed_alone, ..place("evaluator-0", evaluator, pod) }])
}

/// The gang after the evaluator's pod was replaced. The new pod takes part in no start yet.
fn replaced(phase: ReplicaPhase, pod: Presence) -> Gang<'static> {
    let of_start = beside(Running(FIRST), Running(FIRST), Live, 0);
    Gang::new(vec![of_start.places()[0].clone(), place("evaluator-0", phase, pod)], None)
}

fn look_by(policy: &Policy, phase: JobPhase, gang: &Gang<'_>, now: Duration) -> (JobPhase, Vec<Action>) {
    step(phase, JobEvent::Observed, seen(gang, policy, now))
}

#[test]
fn an_evaluator_that_fails_starts_again_in_a_new_pod_while_the_others_train() {
    let rejoin = vec![Action::Rejoin { generation: FIRST, replica: id("evaluator-0") }];
    for (gang, actions) in [
        (beside(Running(FIRST), Exited(FIRST, exit(1, 5)), Live, 2), delete(&["evaluator-0"])),
        (beside(Running(FIRST), lost(), Presence::Ended, 0), delete(&["evaluator-0"])),
        (beside(Running(FIRST), Exited(FIRST, exit(1, 5)), Absent, 2), create(&["evaluator-0"])),
        (replaced(Requested, Absent), create(&["evaluator-0"])),
        (replaced(Requested, Live), vec![]),
        (replaced(Joined, Live), rejoin),
    ] {
        assert_eq!(look_by(&with_restarts(3), running(), &gang, SOON), (running(), actions), "{gang:?}");
    }
}

#[test]
fn an_evaluator_ends_the_job_when_its_own_restarts_are_used_up_or_its_rule_forbids_one() {
    let stopped = Exited(FIRST, stopped(9));
    let never = changed(with_restarts(3), |policy| {
        policy.rules.retries.restart = [(id("evaluator-0").role, RestartRule::Never)].into()
    });
    for (policy, failed_alone) in [(with_restarts(3), 3), (with_restarts(0), 0), (never, 0)] {
        let gang = beside(Running(FIRST), Exited(FIRST, exit(1, 5)), Live, failed_alone);
        let failure = exited("evaluator-0", exit(1, 5));
        let (phase, _) = look_by(&policy, running(), &gang, SOON);
        assert_eq!(ending_of(phase.clone()), Ending::Failed(failure.clone()));
        let ended = beside(stopped.clone(), Exited(FIRST, exit(1, 5)), Live, failed_alone);
        let (phase, _) = look_by(&policy, phase, &ended, SOON);
        assert_eq!(phase.result(), Some(&JobResult::Failed { failure }));
    }
}

#[test]
fn the_training_succeeds_while_its_evaluator_starts_again_and_an_earlier_failure_of_it_is_no_cause() {
    let (phase, _) = look_by(&with_restarts(3), running(), &replaced_after_success(), SOON);
    assert_eq!(ending_of(phase), Ending::Succeeded);
    let gang = beside(Exited(FIRST, exit(1, 9)), Exited(FIRST, exit(1, 5)), Live, 0);
    assert_eq!(gang.cause(exited("worker-0", exit(1, 9))), exited("worker-0", exit(1, 9)));
}

/// Between the two observations, no script has begun.
#[test]
fn an_evaluator_that_cannot_be_reached_was_lost_with_its_pod_if_the_cluster_has_removed_the_pod() {
    let gang = beside(Configured(FIRST), Lost(LostRun::disrupted("drained")), Presence::Ended, 0);
    assert_eq!(Some(gang.cause(was_lost("evaluator-0"))), gang.places()[1].failure());
}

fn replaced_after_success() -> Gang<'static> {
    let of_start = beside(Exited(FIRST, exit(0, 9)), Running(FIRST), Live, 0);
    Gang::new(vec![of_start.places()[0].clone(), place("evaluator-0", Requested, Absent)], None)
}

#[test]
fn an_evaluator_may_go_on_after_the_training_has_succeeded_until_its_grace_ends() {
    let grace = Duration::from_secs(300);
    let policy = changed(POLICY, |policy| policy.rules.graces.evaluator = grace);
    let gang = beside(Exited(FIRST, exit(0, 5)), Running(FIRST), Live, 0);
    let (train, all) = (
        Action::StopTraining { grace: POLICY.rules.graces.success },
        Action::StopRuns { grace: POLICY.rules.graces.success },
    );
    let (phase, actions) = look_by(&policy, running(), &gang, SOON);
    assert_eq!((ending_of(phase.clone()), actions), (Ending::Succeeded, vec![train.clone()]));
    assert_eq!(next_look(&phase, &[], seen(&gang, &policy, SOON + Duration::from_secs(60))), Some(SOON + grace));
    let deleted = Action::DeletePods(PodSelection::Unended);
    let limit = grace + POLICY.rules.graces.success + RELEASE_TIMEOUT;
    for (after, action) in [(grace - Duration::from_nanos(1), train), (grace, all.clone()), (limit, deleted)] {
        assert_eq!(look_by(&policy, phase.clone(), &gang, SOON + after).1, [action], "{after:?}");
    }
    let (cancelled, actions) = step(phase.clone(), JobEvent::CancelWished, seen(&gang, &policy, SOON + grace / 2));
    assert_eq!(actions, [all], "a cancel does not stop the evaluator");
    assert_eq!(ending_of(cancelled), Ending::Succeeded);
    let ended = beside(Exited(FIRST, exit(0, 5)), Exited(FIRST, exit(0, 7)), Live, 0);
    assert_eq!(look_by(&policy, phase, &ended, SOON).0.result(), Some(&JobResult::Succeeded));
}
