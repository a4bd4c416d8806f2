//! Tests of jobs whose script fails twice in the same way.

use job::diagnosis::fingerprint;
use job::gang::Gang;
use job::phase::{Action, Ending, Halt, JobEvent, JobPhase, Seen};
use job::policy::Policy;
use job::replica::ReplicaPhase::Exited;
use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::{FailedStart, Failure, Fingerprint, Restarts};
use protocol::ids::UnixMillis;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::progress::Progress;
use protocol::run_policy::{OnSameFailure, RunPolicy};
use protocol::view::JobResult;

use crate::support::{
    FIRST, NO_RESTARTS, SOON, changed, exit, exited, fixed, id, lost, seen, step, stopped, stopping, with_progress,
    with_restarts, workers,
};

/// An exit with code 1 after this exception.
fn raised(exception: &str) -> ExitReport {
    ExitReport { exception: Some(exception.to_owned()), ..exit(1, 9) }
}

/// A gang of two in which worker-1 has failed, after its script had reported this step.
fn failed_gang(exit: ExitReport, step: Option<u64>) -> (Failure, Gang<'static>) {
    let mut members = workers(&[Exited(FIRST, stopped(10)), Exited(FIRST, exit.clone())]).places().to_vec();
    members[1] = with_progress(&members[1], Progress { step, ..Progress::default() });
    (exited("worker-1", exit), fixed(members))
}

/// The restarts of a job whose newest failed start had this failure.
fn after(exception: &str, step: Option<u64>, counted: bool) -> Restarts {
    let (failure, gang) = failed_gang(raised(exception), step);
    let fingerprint = fingerprint(&failure, &gang);
    assert!(fingerprint.is_some(), "the failure has no fingerprint");
    let start = FailedStart { counted, fingerprint, ..FailedStart::new(Some(FIRST), UnixMillis(9), failure) };
    Restarts { counted: u32::from(counted), failed_starts: vec![start], ..NO_RESTARTS.clone() }
}

/// Whether the job restarts after a failure with `exception` at `step`, and not whether the job fails.
fn restarts_after(exception: &str, step: Option<u64>, policy: &Policy, restarts: &Restarts) -> bool {
    let (failure, gang) = failed_gang(raised(exception), step);
    let seen = Seen { restarts, ..seen(&gang, policy, SOON) };
    let (phase, actions) = step_of(Ending::Failed(failure), seen);
    let concludes = actions.iter().any(|action| matches!(action, Action::Conclude(_)));
    assert_eq!(concludes, matches!(phase, JobPhase::Releasing { .. }), "{phase:?} {actions:?}");
    matches!(phase, JobPhase::Restarting { .. })
}

fn step_of(ending: Ending, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    step(stopping(ending), JobEvent::Observed, seen)
}

const SHAPE: &str = "ValueError: Shapes (3,) and (4,) are incompatible";

#[test]
fn the_same_exception_at_the_same_step_twice_in_a_row_fails_the_job() {
    let policy = with_restarts(3);
    let before = after(SHAPE, Some(12), true);
    assert!(restarts_after(SHAPE, Some(12), &policy, &NO_RESTARTS), "the job fails after its first failure");
    assert!(!restarts_after(SHAPE, Some(12), &policy, &before), "the job restarts although it would fail again");
    assert!(restarts_after(SHAPE, Some(13), &policy, &before), "the job has come further, and fails");
    assert!(restarts_after("OSError: full", Some(12), &policy, &before), "another exception fails the job");
    assert!(restarts_after(SHAPE, None, &policy, &after(SHAPE, None, true)), "without a step, the job fails");
    assert!(restarts_after(SHAPE, Some(12), &policy, &after(SHAPE, Some(12), false)), "the first did not count");
}

#[test]
fn with_retry_same_and_for_tfjobs_the_budget_alone_limits_the_restarts() {
    let policy = changed(with_restarts(3), |policy| policy.rules.retries.on_same_failure = OnSameFailure::Restart);
    assert!(restarts_after(SHAPE, Some(12), &policy, &after(SHAPE, Some(12), true)));
    let mut spec = JobSpec::try_from(JobRequest::new("same".parse().expect("a valid name"), Strategy::AllReduce))
        .expect("a valid request");
    let rule = |spec: &JobSpec| Policy::of(spec, std::time::Duration::ZERO, 0).rules.retries.on_same_failure;
    assert_eq!((spec.strategy, rule(&spec)), (Strategy::AllReduce, OnSameFailure::Stop));
    spec.run_policy = RunPolicy { on_same_failure: OnSameFailure::Restart, ..RunPolicy::default() };
    assert_eq!(rule(&spec), OnSameFailure::Restart);
    spec.run_policy = RunPolicy::default();
    let origin = serde_json::json!({ "launcher": "tf_job", "api_version": "kubeflow.org/v1", "spec": {} });
    spec.origin = Some(serde_json::from_value(origin).expect("not an origin"));
    assert_eq!(rule(&spec), OnSameFailure::Restart);
}

#[test]
fn an_eviction_between_two_equal_failures_changes_nothing() {
    let mut before = after(SHAPE, Some(12), true);
    let evicted = FailedStart { counted: false, fingerprint: None, ..before.failed_starts[0].clone() };
    before.note(evicted);
    assert!(!restarts_after(SHAPE, Some(12), &with_restarts(3), &before));
}

#[test]
fn a_job_that_waited_for_new_code_is_judged_by_the_failure_before_the_wait() {
    let before = after(SHAPE, Some(12), true);
    let (failure, fingerprint) = (before.failed_starts[0].failure.clone(), before.failed_starts[0].fingerprint.clone());
    let (next, policy) = (FIRST.next(), with_restarts(3));
    let halt = Halt { generation: FIRST, next, failure: failure.clone(), fingerprint, pushes: 0, until: SOON };
    let gone = workers(&[lost(), lost()]);
    let seen = Seen { restarts: &before, ..seen(&gone, &policy, SOON) };
    let (phase, _) = step(JobPhase::Halted(halt), JobEvent::Observed, seen);
    let result = JobResult::Failed { failure };
    assert_eq!(phase, JobPhase::Releasing { result, since: SOON }, "the job would fail in the same way again");
}

#[test]
fn only_a_script_that_ended_with_an_exception_has_a_fingerprint() {
    let of = |exit: ExitReport| {
        let (failure, gang) = failed_gang(exit, Some(12));
        fingerprint(&failure, &gang)
    };
    let expected = Fingerprint {
        seat: id("worker-1"),
        process: None,
        exception: SHAPE.to_owned(),
        step: Some(12),
        split: 0,
        members: 2,
        pushes: 0,
    };
    assert_eq!(of(raised(SHAPE)), Some(expected));
    assert_eq!(of(exit(1, 9)), None);
    assert_eq!(of(ExitReport { stopped: true, ..raised(SHAPE) }), None);
    for outcome in [ExitOutcome::Signal(11), ExitOutcome::OutOfMemory { limit: None }] {
        assert_eq!(of(ExitReport { outcome, ..raised(SHAPE) }), None);
    }
    let long = of(raised(&"é".repeat(1000))).expect("no fingerprint");
    assert_eq!(long.exception, "é".repeat(128));
}
