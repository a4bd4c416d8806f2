//! Tests of the policy that follows from a spec, and of the policy's verdict on each failure.

use std::num::NonZeroU32;
use std::time::Duration;

use job::gang::HelperUse;
use job::observation::{Incarnation, Others, Pod, PodState};
use job::policy::Budget::{Counted, Free};
use job::policy::{
    Deadline, GangKind, Graces, LEAVING_GRACE_MAX, Policy, Retries, Rules, STOP_GRACE, SuccessRule, Verdict, Wishes,
};
use protocol::agent::{ExitOutcome, ExitReport};
use protocol::elastic::Workers;
use protocol::failure::{Failure, Loss, Restarts};
use protocol::group::{Group, Template};
use protocol::ids::{Role, UnixMillis};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::pod::PodOptions;
use protocol::run_policy::{
    CleanPods, OnFailure, OnSameFailure, OnStartTimeout, OnUnreachable, RestartRule, RunPolicy, SuccessPolicy,
};
use serde_json::json;

use crate::support::{NO_RESTARTS, changed, exit, exited, id, stopped};

fn spec(strategy: Strategy, chief_num: Option<u32>, run_policy: RunPolicy) -> JobSpec {
    let request = JobRequest::new("job".parse().expect("not a job's name"), strategy);
    let request = JobRequest { worker_num: Some(2), chief_num, evaluator_num: Some(1), run_policy, ..request };
    JobSpec::try_from(request).expect("an invalid request")
}

/// The policy of a job that was accepted `age` seconds ago. `share` is a number that differs between jobs, so that they
/// do not all pause for the same time before they request pods again.
fn of(run_policy: RunPolicy, age: u64, share: u8) -> Policy {
    Policy::of(&spec(Strategy::AllReduce, None, run_policy), Duration::from_secs(age), share)
}

#[test]
fn the_policy_of_a_job_follows_its_spec() {
    let chosen = RunPolicy {
        max_restarts: 7,
        backoff_seconds: 11,
        no_retry_exit_codes: [2, 3].into(),
        restart: [(Role::Ps, RestartRule::Never)].into(),
        on_failure: OnFailure::Wait,
        on_same_failure: OnSameFailure::Restart,
        start_timeout_seconds: 60,
        on_start_timeout: OnStartTimeout::Requeue,
        deadline_seconds: Some(3600),
        ttl_after_finished_seconds: Some(5),
        clean_pods: CleanPods::All,
        success_policy: Some(SuccessPolicy::Worker0),
        grow_interval_seconds: Some(60),
        evaluator_grace_seconds: Some(90),
        preload: None,
        on_unreachable: OnUnreachable::Wait,
        lease_seconds: 5,
    };
    let graces = Graces {
        cancel: Duration::from_secs(10),
        success: STOP_GRACE,
        leaving: LEAVING_GRACE_MAX,
        saving: Duration::from_secs(30),
        evaluator: Duration::from_secs(90),
    };
    let retries = Retries {
        max_restarts: 7,
        backoff: Duration::from_secs(11),
        no_retry_exit_codes: [2, 3].into(),
        restart: [(Role::Ps, RestartRule::Never)].into(),
        halt: Some(Duration::from_secs(600)),
        on_same_failure: OnSameFailure::Restart,
        on_start_timeout: OnStartTimeout::Requeue,
        requeue_pause: Duration::from_secs(60),
    };
    let rules = Rules {
        start_timeout: Duration::from_secs(60),
        graces,
        retries,
        success: SuccessRule::Decider(id("worker-0")),
        clean_pods: CleanPods::All,
        kind: GangKind::Fixed,
        grow_interval: Some(Duration::from_secs(60)),
        evaluators_return: false, // the spec has no folder, so machines join it
        lease: None,
    };
    let wishes = Wishes {
        workers: Workers { min: 2, max: 2 },
        pushes: 0,
        is_suspended: false,
        deadline: Some(Deadline { at: Duration::from_secs(3600), given: Duration::from_secs(3600) }),
    };
    let expected = Policy { rules, wishes };
    assert_eq!(of(chosen, 0, 128), expected);
}

#[test]
fn a_deadline_counts_from_the_moment_the_job_was_accepted() {
    let hurried = RunPolicy { deadline_seconds: Some(3600), ..RunPolicy::default() };
    let given = Duration::from_secs(3600);
    for (age, left) in [(0, 3600), (3000, 600), (3600, 0), (9999, 0)] {
        let deadline = of(hurried.clone(), age, 0).wishes.deadline;
        assert_eq!(
            deadline,
            Some(Deadline { at: Duration::from_secs(left), given }),
            "wrong deadline {age} s after the job was accepted"
        );
    }
    assert_eq!(of(RunPolicy::default(), 3000, 0).wishes.deadline, None);
}

#[test]
fn the_rule_of_a_role_decides_which_failures_restart_the_job() {
    let restart = [(Role::Worker, RestartRule::ExitCode), (Role::Ps, RestartRule::Never)].into();
    let policy = of(RunPolicy { restart, ..RunPolicy::default() }, 0, 0);
    let budget = |failure: &Failure| policy.budget_of(failure, HelperUse::None);
    let report = |outcome| ExitReport::new(outcome, UnixMillis(0));
    let died = |replica: &str, outcome| Failure::ReplicaExited { replica: id(replica), exit: report(outcome) };
    let lost = |replica: &str| Failure::ReplicaLost {
        replica: id(replica),
        reason: "evicted".to_owned(),
        loss: Loss::Disrupted,
    };
    assert_eq!(budget(&died("worker-0", ExitOutcome::Code(1))), None);
    assert_eq!(budget(&died("worker-0", ExitOutcome::Code(127))), None);
    assert_eq!(budget(&died("worker-0", ExitOutcome::Code(128))), Some(Counted));
    assert_eq!(budget(&died("worker-0", ExitOutcome::Signal(9))), Some(Counted));
    assert_eq!(budget(&died("worker-0", ExitOutcome::OutOfMemory { limit: None })), Some(Counted));
    assert_eq!(budget(&lost("worker-0")), Some(Free));
    assert_eq!(budget(&died("ps-0", ExitOutcome::Signal(9))), None);
    assert_eq!(budget(&lost("ps-0")), None);
    assert_eq!(budget(&died("chief-0", ExitOutcome::Code(1))), Some(Counted));
}

#[test]
fn the_requeue_pause_of_jobs_differs_by_their_random_share() {
    let pause = |start_timeout_seconds, share| {
        of(RunPolicy { start_timeout_seconds, ..RunPolicy::default() }, 0, share)
            .rules
            .retries
            .requeue_pause
            .as_millis()
    };
    assert_eq!((pause(100, 0), pause(100, 128), pause(100, 255)), (50_000, 100_000, 149_609));
    assert_eq!((pause(3600, 0), pause(3600, 128)), (150_000, 300_000), "the pause is not 300 s times 0.5 to 1.5");
}

#[test]
fn the_default_success_rule_follows_from_strategy_and_roles() {
    let rule = |strategy, chief_num| {
        Policy::of(&spec(strategy, chief_num, RunPolicy::default()), Duration::ZERO, 0).rules.success
    };
    assert_eq!(rule(Strategy::AllReduce, None), SuccessRule::AllThatTrain);
    assert_eq!(rule(Strategy::AllReduce, Some(1)), SuccessRule::Decider(id("chief-0")));
    assert_eq!(rule(Strategy::ParameterServer, None), SuccessRule::Decider(id("chief-0")));
    assert_eq!(rule(Strategy::ParameterServer, Some(0)), SuccessRule::Decider(id("worker-0")));
}

#[test]
fn a_spec_can_choose_the_success_rule() {
    let chosen = [
        (SuccessPolicy::All, SuccessRule::AllThatTrain),
        (SuccessPolicy::Chief, SuccessRule::Decider(id("chief-0"))),
        (SuccessPolicy::Worker0, SuccessRule::Decider(id("worker-0"))),
    ];
    for (choice, rule) in chosen {
        let run_policy = RunPolicy { success_policy: Some(choice), ..RunPolicy::default() };
        let policy = Policy::of(&spec(Strategy::AllReduce, Some(1), run_policy), Duration::ZERO, 0);
        assert_eq!(policy.rules.success, rule, "{choice}");
    }
}

fn ended(outcome: ExitOutcome) -> Failure {
    exited("worker-0", ExitReport { outcome, ..exit(0, 1) })
}

fn lost(loss: Loss) -> Failure {
    Failure::ReplicaLost { replica: id("worker-0"), reason: "its node died".to_owned(), loss }
}

fn timed_out() -> Failure {
    Failure::StartTimeout { missing: vec![id("worker-0")], after_seconds: 1, reason: None }
}

#[test]
fn each_failure_gets_the_expected_verdict() {
    let run_policy = RunPolicy { backoff_seconds: 4, no_retry_exit_codes: [2, 200].into(), ..RunPolicy::default() };
    let policy = of(run_policy, 0, 0);
    let restart = |budget| Verdict::Restart { budget, pause: Duration::from_secs(4) };
    let stopped_first = ExitReport { outcome: ExitOutcome::NotStarted("stopped".to_owned()), ..stopped(1) };
    let verdicts = [
        (ended(ExitOutcome::Code(1)), restart(Counted)),
        (ended(ExitOutcome::Code(2)), Verdict::GiveUp),
        (ended(ExitOutcome::Code(200)), Verdict::GiveUp),
        // -56 is 200 as a signed byte. No process exits with -56, and -56 is not in `no_retry_exit_codes`.
        (ended(ExitOutcome::Code(-56)), restart(Counted)),
        (ended(ExitOutcome::Signal(2)), restart(Counted)),
        (ended(ExitOutcome::OutOfMemory { limit: None }), restart(Counted)),
        (ended(ExitOutcome::NotStarted("there is no python3".to_owned())), Verdict::GiveUp),
        (exited("worker-0", stopped_first), restart(Counted)),
        (lost(Loss::Disrupted), restart(Free)),
        (lost(Loss::Broken), restart(Counted)),
        (lost(Loss::Hopeless), Verdict::GiveUp),
        (timed_out(), Verdict::GiveUp),
        (Failure::DeadlineExceeded { after_seconds: 1 }, Verdict::GiveUp),
    ];
    for (failure, verdict) in verdicts {
        assert_eq!(policy.verdict(&failure, HelperUse::None, &NO_RESTARTS), verdict, "{failure}");
    }
}

#[test]
fn only_a_start_timeout_is_requeued() {
    let requeue = RunPolicy { on_start_timeout: OnStartTimeout::Requeue, ..RunPolicy::default() };
    let policy = of(requeue, 0, 128);
    let spent = Restarts { counted: 3, uncounted: 90, ..NO_RESTARTS.clone() };
    assert_eq!(
        policy.verdict(&timed_out(), HelperUse::None, &spent),
        Verdict::Requeue { pause: policy.rules.retries.requeue_pause }
    );
    for failure in [lost(Loss::Hopeless), Failure::DeadlineExceeded { after_seconds: 1 }, lost(Loss::Broken)] {
        assert_eq!(policy.verdict(&failure, HelperUse::None, &spent), Verdict::GiveUp, "{failure}");
    }
}

#[test]
fn with_max_restarts_0_a_failure_is_final_but_an_eviction_is_not() {
    let policy = of(RunPolicy { max_restarts: 0, ..RunPolicy::default() }, 0, 0);
    assert_eq!(policy.verdict(&ended(ExitOutcome::Code(1)), HelperUse::None, &NO_RESTARTS), Verdict::GiveUp);
    let free = Verdict::Restart { budget: Free, pause: Duration::from_secs(1) };
    assert_eq!(policy.verdict(&lost(Loss::Disrupted), HelperUse::None, &NO_RESTARTS), free);
}

#[test]
fn exit_code_75_causes_a_restart_that_is_free_only_after_a_step() {
    let fixed = of(RunPolicy::default(), 0, 0);
    let (left, failed) = (ended(ExitOutcome::Code(75)), ended(ExitOutcome::Code(1)));
    for policy in [changed(fixed.clone(), |policy| policy.rules.kind = GangKind::Elastic), fixed] {
        let forbidden = changed(policy.clone(), |policy| policy.rules.retries.no_retry_exit_codes = [75].into());
        for (policy, failure, helper, budget) in [
            (&policy, &left, HelperUse::Stepped, Some(Free)),
            (&policy, &left, HelperUse::Begun, Some(Counted)),
            (&policy, &left, HelperUse::None, Some(Counted)),
            (&policy, &failed, HelperUse::Stepped, Some(Counted)),
            (&policy, &lost(Loss::Broken), HelperUse::Stepped, Some(Counted)),
            (&forbidden, &left, HelperUse::Stepped, None),
        ] {
            assert_eq!(policy.budget_of(failure, helper), budget, "{failure} {helper:?}");
        }
    }
}

#[test]
fn after_a_success_the_grace_of_a_replica_with_a_template_is_that_of_its_pod() {
    let container = json!({ "name": "tensorflow", "image": "mnist:1" });
    let template = Template {
        container: "tensorflow".to_owned(),
        tf_port: 2222,
        pod: json!({ "spec": { "containers": [container] } }),
    };
    let group = Group { template: Some(template), ..Group::new(Role::Worker, 2) };
    let own = spec(Strategy::AllReduce, None, RunPolicy::default());
    let of_template = JobSpec { groups: vec![group], ..own.clone() };
    let graces = |spec: &JobSpec| {
        let policy = Policy::of(spec, Duration::ZERO, 0);
        (STOP_GRACE, policy.rules.graces.success, policy.rules.graces.cancel)
    };
    // Only a script on a machine without Kubernetes has time to save after Ctrl-C, if the user gives no time.
    assert_eq!(graces(&own), (STOP_GRACE, STOP_GRACE, Duration::from_secs(10)));
    assert_eq!(graces(&of_template), (STOP_GRACE, Duration::from_secs(30), STOP_GRACE));
    // In pods, only the template of a TFJob says what runs.
    let returns = |spec: &JobSpec| Policy::of(spec, Duration::ZERO, 0).rules.evaluators_return;
    assert!(returns(&of_template) && !returns(&JobSpec { image: None, work_dir: None, code: None, ..own }));
}

#[test]
fn the_termination_grace_limits_a_save() {
    let graces = |seconds| {
        let own = spec(Strategy::AllReduce, None, RunPolicy::default());
        let options = PodOptions { termination_grace_seconds: NonZeroU32::new(seconds), ..PodOptions::default() };
        let policy = Policy::of(&JobSpec { pod: options, ..own }, Duration::ZERO, 0);
        (
            policy.rules.graces.leaving.as_secs(),
            policy.rules.graces.saving.as_secs(),
            policy.rules.graces.cancel.as_secs(),
        )
    };
    assert_eq!(graces(120), (10, 120, 120));
    assert_eq!(graces(6), (6, 6, 6));
}

#[test]
fn the_pods_of_each_group_are_a_kind_and_count_at_their_minimum() {
    let with =
        |cpu: &str, count| Group { cpu: Some(cpu.parse().expect("not an amount")), ..Group::new(Role::Worker, count) };
    let kinds = |groups, worker_min| {
        let request = JobRequest::new("job".parse().expect("not a job's name"), Strategy::AllReduce);
        let workers = if worker_min == Some(1) { Some(3) } else { None };
        let request = JobRequest { groups, worker_min, worker_num: workers, chief_num: Some(1), ..request };
        job::plan::kinds(&JobSpec::try_from(request).expect("an invalid request"))
    };
    assert_eq!(kinds(vec![], Some(1)), [(id("chief-0"), 2)], "the chief and one worker of up to three");
    let grouped = kinds(vec![with("1", 2), with("4", 1)], None);
    assert_eq!(grouped, [(id("chief-0"), 1), (id("worker-0"), 2), (id("worker-2"), 1)]);
}

#[test]
fn a_pod_has_ended_if_its_agent_has() {
    let (reason, others) = (String::new(), Others::Ended);
    let has_ended = |state| Pod { incarnation: Incarnation::from("a".to_owned()), state }.has_ended();
    assert!(has_ended(PodState::Disrupted { reason: reason.clone(), others }));
    assert!(has_ended(PodState::Terminated { exit: None, reason: reason.clone(), others }));
    assert!(!has_ended(PodState::Leaving { reason: reason.clone() }) && !has_ended(PodState::Unusable { reason }));
}
