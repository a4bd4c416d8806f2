//! Job requests: golden JSON, the defaults of each strategy, and errors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::common::{assert_golden, read, with};
use proptest::prelude::*;
use protocol::about::About;
use protocol::code::CodeId;
use protocol::elastic::Workers;
use protocol::env::EnvName;
use protocol::error::ErrorCode;
use protocol::ids::Role;
use protocol::job::{JobRequest, JobSpec, SpecError, Strategy};
use protocol::patch::JobPatch;
use protocol::pod::PodOptions;
use protocol::processes::NprocPerNode;
use protocol::run_policy::{OnFailure, OnUnreachable, RunPolicy, SuccessPolicy};
use protocol::tf_config::MEMBERS_MAX;
use serde_json::{Value, json};

fn request(strategy: Strategy) -> JobRequest {
    JobRequest::new("digits".parse().expect("an invalid job name"), strategy)
}

fn full_request() -> JobRequest {
    JobRequest {
        worker_num: Some(4),
        ps_num: Some(2),
        chief_num: Some(1),
        evaluator_num: Some(1),
        image: Some("registry.example/digits:1".parse().expect("an invalid image name")),
        pod: options(),
        work_dir: Some("/home/user/digits".into()),
        args: vec!["--steps".into(), "9".into()],
        env: variable("STEPS", "9"),
        run_policy: RunPolicy {
            max_restarts: 7,
            no_retry_exit_codes: BTreeSet::from([2, 3]),
            deadline_seconds: Some(3600),
            success_policy: Some(SuccessPolicy::Chief),
            ..RunPolicy::default()
        },
        allow_env: allowed(&["LD_PRELOAD"]),
        about: About { source: Some("/home/user/digits/exec.py".into()), commit: None },
        ..request(Strategy::ParameterServer)
    }
}

fn code() -> CodeId {
    "ab".repeat(32).parse().expect("an invalid id")
}

fn options() -> PodOptions {
    PodOptions { gpus: Some(1), memory: Some("2Gi:4Gi".parse().expect("an invalid amount")), ..PodOptions::default() }
}

fn variable(name: &str, value: &str) -> BTreeMap<EnvName, String> {
    BTreeMap::from([(name.parse().expect(name), value.to_owned())])
}

fn allowed(names: &[&str]) -> BTreeSet<EnvName> {
    names.iter().map(|name| name.parse().expect("an invalid name")).collect()
}

fn spec(request: JobRequest) -> JobSpec {
    request.try_into().expect("an invalid request")
}

fn counts(spec: &JobSpec) -> [u32; 4] {
    Role::ALL.map(|role| spec.count(role))
}

#[test]
fn a_request_contains_only_the_fields_that_are_set() {
    assert_golden(&request(Strategy::AllReduce), &json!({"name": "digits", "strategy": "AllReduce"}));
}

#[test]
fn a_full_request_and_its_spec_have_the_same_json() {
    let golden = json!({
        "name": "digits", "strategy": "ParameterServer",
        "worker_num": 4, "ps_num": 2, "chief_num": 1, "evaluator_num": 1,
        "image": "registry.example/digits:1", "work_dir": "/home/user/digits",
        "args": ["--steps", "9"], "env": {"STEPS": "9"}, "allow_env": ["LD_PRELOAD"],
        "pod": {"memory": "2Gi:4Gi", "gpus": 1},
        "about": {"source": "/home/user/digits/exec.py"},
        "run_policy": {
            "max_restarts": 7, "backoff_seconds": 1, "no_retry_exit_codes": [2, 3], "start_timeout_seconds": 600,
            "on_start_timeout": "fail", "deadline_seconds": 3600, "clean_pods": "running", "success_policy": "chief",
        },
    });
    assert_golden(&full_request(), &golden);
    assert_golden(&spec(full_request()), &golden);
}

#[test]
fn a_job_names_the_code_that_it_brings_and_its_script() {
    let script = Some("src/train.py".parse().expect("an invalid path"));
    let request = JobRequest { code: Some(code()), script, ..request(Strategy::AllReduce) };
    let golden = json!({"name": "digits", "strategy": "AllReduce", "code": "ab".repeat(32), "script": "src/train.py"});
    assert_golden(&request, &golden);
    let golden = json!({
        "name": "digits", "strategy": "AllReduce", "worker_num": 2, "ps_num": 0, "chief_num": 0, "evaluator_num": 0,
        "code": "ab".repeat(32), "script": "src/train.py",
    });
    assert_golden(&spec(request), &golden);
}

#[test]
fn a_spec_has_the_default_counts_of_its_strategy() {
    let golden = json!({
        "name": "digits", "strategy": "AllReduce",
        "worker_num": 2, "ps_num": 0, "chief_num": 0, "evaluator_num": 0,
    });
    assert_golden(&spec(request(Strategy::AllReduce)), &golden);
    let golden = json!({
        "name": "digits", "strategy": "ParameterServer",
        "worker_num": 2, "ps_num": 1, "chief_num": 1, "evaluator_num": 0,
    });
    assert_golden(&spec(request(Strategy::ParameterServer)), &golden);
}

#[test]
fn a_spec_counts_the_replicas_of_each_role() {
    assert_eq!(counts(&spec(full_request())), [1, 4, 2, 1]);
    let no_chief = JobRequest { chief_num: Some(0), ..request(Strategy::ParameterServer) };
    assert_eq!(counts(&spec(no_chief)), [0, 2, 1, 0], "wrong counts of a job without a chief");
    let with_chief = JobRequest { chief_num: Some(1), ps_num: Some(0), ..request(Strategy::AllReduce) };
    assert_eq!(counts(&spec(with_chief)), [1, 2, 0, 0]);
}

#[test]
fn a_job_can_wait_for_new_code_only_if_its_code_is_not_in_its_image() {
    let code = json!("77".repeat(32));
    let job = |more: Value| {
        let waits = json!({ "name": "digits", "strategy": "AllReduce", "run_policy": { "on_failure": "wait" } });
        let request: JobRequest = read(&with(&waits, &more)).expect("an invalid request");
        JobSpec::try_from(request).map(|spec| (spec.run_policy.on_failure, spec.takes_new_code()))
    };
    let waits = Ok((OnFailure::Wait, true));
    assert_eq!(job(json!({ "image": "train:1", "code": code, "script": "train.py" })), waits);
    assert_eq!(job(json!({ "work_dir": "/home/ada" })), waits);
    let refused = job(json!({ "image": "train:1" }));
    assert_eq!(refused, Err(SpecError::WaitWithoutCode));
    assert_eq!(SpecError::WaitWithoutCode.code(), ErrorCode::BadRunPolicy);
}

#[test]
fn a_job_with_one_possible_number_of_workers_is_elastic_if_it_replaces_lost_workers_or_its_tfjob_may_grow() {
    let min_of = |on_unreachable: OnUnreachable, tfjob: Option<Value>| {
        let run_policy = RunPolicy { on_unreachable, ..RunPolicy::default() };
        let origin = tfjob.map(|spec| json!({ "launcher": "tf_job", "api_version": "kubeflow.org/v1", "spec": spec }));
        let origin = origin.map(|origin| serde_json::from_value(origin).expect("an invalid origin"));
        let four = request(Strategy::AllReduce);
        let four = JobRequest { worker_min: Some(4), worker_num: Some(4), run_policy, origin, ..four };
        let spec = spec(four);
        let json = serde_json::to_value(&spec).expect("not JSON");
        assert_eq!(read::<JobSpec>(&json), Ok(spec.clone()), "the spec differs after it was written and read");
        spec.worker_min
    };
    assert_eq!((min_of(OnUnreachable::Wait, None), min_of(OnUnreachable::Replace, None)), (None, Some(4)));
    for (is_dynamic, expected) in [(false, None), (true, Some(4))] {
        let tfjob = json!({ "enableDynamicWorker": is_dynamic });
        assert_eq!(min_of(OnUnreachable::Wait, Some(tfjob)), expected, "enableDynamicWorker: {is_dynamic}");
    }
}

#[test]
fn an_unknown_field_is_refused_in_a_request_and_ignored_in_a_record() {
    let known = serde_json::to_value(spec(full_request())).expect("not JSON");
    for (path, field) in
        [("/worker_nmu", "worker_nmu"), ("/pod/gpu", "gpu"), ("/run_policy/luck", "luck"), ("/about/host", "host")]
    {
        let mut json = known.clone();
        let part = path.strip_suffix(&format!("/{field}")).and_then(|part| json.pointer_mut(part));
        part.expect("no part")[field] = json!(1);
        let refused = read::<JobRequest>(&json).expect_err("not refused");
        assert!(refused.starts_with(&format!("unknown field `{field}`, expected ")), "{refused}");
        assert_eq!(read::<JobSpec>(&json), read(&known), "{field}");
    }
}

#[test]
fn a_text_about_the_origin_of_a_job_that_is_too_long_is_left_out() {
    let about = |source: String| read::<About>(&json!({"source": source, "commit": "4e37ab42"})).expect("not read");
    assert_eq!(about("a".repeat(512)).source.map(|text| text.len()), Some(512));
    assert_eq!(about("a".repeat(513)), About { source: None, commit: Some("4e37ab42".to_owned()) });
}

#[test]
fn the_same_job_may_come_from_another_commit() {
    let from = |commit: &str| {
        let about = About { source: None, commit: Some(commit.to_owned()) };
        spec(JobRequest { about, ..full_request() })
    };
    assert!(from("4e37ab42").asks_for_the_same(&from("4e37ab42-dirty")));
    assert!(!from("4e37ab42").asks_for_the_same(&spec(request(Strategy::AllReduce))));
}

#[test]
fn a_spec_is_checked_when_it_is_read() {
    let error =
        read::<JobSpec>(&json!({"name": "a", "strategy": "AllReduce", "worker_num": 0})).expect_err("not refused");
    assert!(error.starts_with("worker-num is 0: use at least 1"), "{error}");
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    for (field, value) in [
        ("worker_num", json!(-1)),
        ("worker_num", json!("4")),
        ("worker_num", json!(4_294_967_296_u64)),
        ("name", json!("No Label")),
        ("strategy", json!("allreduce")),
        ("env", json!({"1A": "x"})),
        ("env", json!({"A": 1})),
        ("args", json!("--steps")),
    ] {
        let mut body = json!({"name": "digits", "strategy": "AllReduce"});
        body[field] = value;
        assert!(read::<JobRequest>(&body).is_err(), "{body}");
    }
}

#[test]
fn a_strategy_has_any_letter_case_in_text_but_only_one_in_json() {
    for text in ["AllReduce", "allreduce", "ALLREDUCE"] {
        assert_eq!(text.parse(), Ok(Strategy::AllReduce));
    }
    for text in ["ParameterServer", "parameterserver", "ps", "PS"] {
        assert_eq!(text.parse(), Ok(Strategy::ParameterServer));
    }
    for strategy in [Strategy::AllReduce, Strategy::ParameterServer] {
        assert_eq!(strategy.to_string().parse(), Ok(strategy));
        assert_eq!(serde_json::to_value(strategy).expect("not JSON"), strategy.as_str());
    }
}

#[test]
fn the_error_for_an_unknown_strategy_names_the_known_strategies() {
    let error = "Horovod".parse::<Strategy>().expect_err("not refused");
    assert_eq!(error.code(), ErrorCode::BadStrategy);
    assert_eq!(error.to_string(), "strategy \"Horovod\" is unknown: use AllReduce or ParameterServer");
}

/// Asserts that the request is refused with this code and exactly this sentence.
#[track_caller]
fn assert_refused(request: JobRequest, code: ErrorCode, sentence: &str) {
    let error = JobSpec::try_from(request).expect_err("not refused");
    assert_eq!((error.code(), error.to_string().as_str()), (code, sentence));
}

#[test]
fn counts_that_the_strategy_does_not_allow_are_refused() {
    let (all_reduce, ps) = (request(Strategy::AllReduce), request(Strategy::ParameterServer));
    assert_refused(
        JobRequest { worker_num: Some(0), ..all_reduce.clone() },
        ErrorCode::BadWorkerNum,
        "worker-num is 0: use at least 1",
    );
    assert_refused(
        JobRequest { ps_num: Some(1), ..all_reduce.clone() },
        ErrorCode::BadPsNum,
        "ps-num is 1, but AllReduce has no parameter servers: leave out ps-num, or use --strategy ParameterServer",
    );
    assert_refused(
        JobRequest { ps_num: Some(0), ..ps.clone() },
        ErrorCode::BadPsNum,
        "ps-num is 0: ParameterServer needs at least one parameter server",
    );
    assert_refused(
        JobRequest { chief_num: Some(2), ..ps },
        ErrorCode::BadChiefNum,
        "chief-num 2 is not allowed: use 0 or 1",
    );
    assert_refused(
        JobRequest { evaluator_num: Some(2), ..all_reduce },
        ErrorCode::BadEvaluatorNum,
        "evaluator-num 2 is not allowed: use 0 or 1",
    );
}

#[test]
fn a_number_of_processes_that_does_not_fit_the_job_is_refused_and_gpu_counts_the_gpus() {
    let with = |nproc: Value, more: Value| {
        let mut job = json!({"name": "digits", "strategy": "AllReduce", "nproc_per_node": nproc});
        job.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        serde_json::from_value::<JobRequest>(job).expect("not a request")
    };
    let gpu = json!("gpu");
    for (request, sentence) in [
        (with(json!(0), json!({})), "nproc-per-node is 0: use 1 to 64"),
        (with(json!(65), json!({})), "nproc-per-node is 65: use 1 to 64"),
        (
            with(json!(2), json!({"strategy": "ParameterServer"})),
            "nproc-per-node needs AllReduce: with ParameterServer, each replica has one process",
        ),
        (
            with(json!(2), json!({"chief_num": 1})),
            "nproc-per-node does not work with a chief: it would have one process alone",
        ),
        (
            with(json!(2), json!({"batching": {"global_batch": 64}})),
            "global-batch cannot be divided among several processes of a replica: use one process in each replica",
        ),
        (
            with(gpu.clone(), json!({})),
            "nproc-per-node gpu needs the same number of GPUs in each replica that trains: give a number",
        ),
    ] {
        assert_refused(request, ErrorCode::BadNprocPerNode, sentence);
    }
    let container =
        json!({"name": "main", "resources": {"limits": {"amd.com/gpu": "3", "google.com/tpu": 1, "cpu": "8"}}});
    let template = json!({"container": "main", "pod": {"spec": {"containers": [container]}}});
    for (more, number) in [
        (json!({"pod": {"gpus": 8}}), 8),
        (json!({"groups": [{"role": "worker", "count": 2, "gpus": 2}]}), 2),
        (json!({"groups": [{"role": "worker", "count": 2, "template": template}]}), 4),
    ] {
        let spec = JobSpec::try_from(with(gpu.clone(), more)).expect("refused");
        assert_eq!(spec.nproc_per_node, number);
        assert_eq!(JobRequest::from(&spec).nproc_per_node, Some(NprocPerNode::Number(number)));
    }
    let most = JobRequest { worker_num: Some(682), ..with(json!(8), json!({})) };
    assert!(JobSpec::try_from(most.clone()).is_ok());
    let error = JobSpec::try_from(JobRequest { worker_num: Some(683), ..most }).expect_err("not refused");
    assert_eq!(error.code(), ErrorCode::BadWorkerNum);
}

#[test]
fn invalid_variables_and_arguments_and_folders_are_refused() {
    let all_reduce = request(Strategy::AllReduce);
    assert_refused(
        JobRequest { env: variable("TF_CONFIG", "{}"), ..all_reduce.clone() },
        ErrorCode::BadEnv,
        "TF_CONFIG is set by Muster itself and cannot be set by a job",
    );
    assert_refused(
        JobRequest { env: variable("A", "x\0y"), ..all_reduce.clone() },
        ErrorCode::BadEnv,
        "the value of A contains a NUL byte",
    );
    assert_refused(
        JobRequest { env: variable("DATA", &"x".repeat(131_072)), ..all_reduce.clone() },
        ErrorCode::BadEnv,
        "DATA would be 131078 bytes long; Linux passes at most 131072 to a program",
    );
    assert_refused(
        JobRequest { args: vec!["fine".into(), "a\0b".into()], ..all_reduce.clone() },
        ErrorCode::BadArgs,
        "argument 2 contains a NUL byte",
    );
    assert_refused(
        JobRequest { args: vec!["x".repeat(131_072)], ..all_reduce.clone() },
        ErrorCode::BadArgs,
        "an argument is 131072 bytes long: use fewer than 131072, and put large input into a file",
    );
    let many = |count: usize| JobRequest { args: vec!["x".repeat(65_533); count], ..all_reduce.clone() };
    assert_eq!(JobSpec::try_from(many(8)).map(|spec| spec.args.len()), Ok(8), "the maximum size is refused");
    assert_refused(
        many(9),
        ErrorCode::BadArgs,
        "arguments and variables take 589824 bytes as JSON: use at most 524288 in total, and put large input into a file",
    );
    assert_refused(
        JobRequest { args: vec!["\u{1}".repeat(100_000)], ..all_reduce.clone() },
        ErrorCode::BadArgs,
        "arguments and variables take 600003 bytes as JSON: use at most 524288 in total, and put large input into a file",
    );
    assert_refused(
        JobRequest { work_dir: Some(PathBuf::from("digits")), ..all_reduce.clone() },
        ErrorCode::BadWorkDir,
        "work_dir \"digits\" is not an absolute path",
    );
    assert_refused(
        JobRequest { work_dir: Some(PathBuf::from("/digits")), code: Some(code()), ..all_reduce },
        ErrorCode::BadCode,
        "code and work_dir cannot be combined: the script comes from only one of them",
    );
}

#[test]
fn a_variable_that_makes_a_program_run_other_code_must_be_allowed_by_name() {
    let request = JobRequest { env: variable("LD_PRELOAD", "/tmp/x.so"), ..request(Strategy::AllReduce) };
    let sentence = "LD_PRELOAD makes a program load or run code that its command does not name: remove it, or \
        allow it with allow_env (--allow-env LD_PRELOAD)";
    assert_refused(request.clone(), ErrorCode::BadEnv, sentence);
    let other = JobRequest { allow_env: allowed(&["LD_AUDIT"]), ..request.clone() };
    assert_refused(other, ErrorCode::BadEnv, sentence);
    let spec = spec(JobRequest { allow_env: allowed(&["LD_PRELOAD", "BASH_ENV"]), ..request });
    assert_eq!((spec.env.len(), spec.allow_env.len()), (1, 2));
}

#[test]
fn the_flag_allow_env_does_not_allow_reserved_variables() {
    let (env, allow_env) = (variable("TF_CONFIG", "{}"), allowed(&["TF_CONFIG"]));
    assert_refused(
        JobRequest { env, allow_env, ..request(Strategy::AllReduce) },
        ErrorCode::BadEnv,
        "TF_CONFIG is set by Muster itself and cannot be set by a job",
    );
}

#[test]
fn a_record_with_a_variable_that_a_request_may_not_set_can_be_read() {
    let record = json!({"name": "digits", "strategy": "AllReduce", "env": {"LD_PRELOAD": "/tmp/x.so"}});
    assert_eq!(read::<JobSpec>(&record).map(|spec| spec.env), Ok(variable("LD_PRELOAD", "/tmp/x.so")));
}

#[test]
fn if_a_tf_config_would_be_too_long_the_error_names_the_maximum_number_of_members() {
    let most = MEMBERS_MAX;
    let workers = |worker_num, ps_num| JobRequest {
        worker_num: Some(worker_num),
        ps_num: Some(ps_num),
        ..request(if ps_num == 0 { Strategy::AllReduce } else { Strategy::ParameterServer })
    };
    let sentence = |role: &str, asked: u32, fits: u32, what: &str| {
        let reason = "TF_CONFIG would exceed Linux's limit for a variable";
        format!("{role}-num {asked} is too large: {reason}; use at most {fits} {what}")
    };
    let cases = [
        (workers(most + 1, 0), ErrorCode::BadWorkerNum, sentence("worker", most + 1, most, "workers")),
        // A ParameterServer job also has a chief.
        (workers(most, 3), ErrorCode::BadWorkerNum, sentence("worker", most, most - 4, "workers")),
        (workers(most - 5, 5), ErrorCode::BadPsNum, sentence("ps", 5, 4, "parameter servers")),
        (workers(4, u32::MAX), ErrorCode::BadPsNum, sentence("ps", u32::MAX, most - 5, "parameter servers")),
        (workers(u32::MAX, u32::MAX), ErrorCode::BadWorkerNum, sentence("worker", u32::MAX, most - 2, "workers")),
    ];
    for (request, code, sentence) in cases {
        assert_refused(request, code, &sentence);
    }
    for fits in [workers(most, 0), workers(most - 4, 3), workers(most - 5, 4), workers(4, most - 5)] {
        assert!(JobSpec::try_from(fits).is_ok());
    }
}

proptest! {
    /// No request causes a panic. An accepted spec is the same after it is written and read. If an error names the
    /// maximum of a count, this maximum is not too large.
    #[test]
    fn every_accepted_spec_has_valid_counts_and_every_maximum_in_an_error_is_accepted(
        strategy in prop::sample::select(vec![Strategy::AllReduce, Strategy::ParameterServer]),
        worker_num in count(), ps_num in count(), chief_num in count(), evaluator_num in count(),
    ) {
        let asked_for = JobRequest { worker_num, ps_num, chief_num, evaluator_num, ..request(strategy) };
        match JobSpec::try_from(asked_for.clone()) {
            Ok(spec) => {
                prop_assert!((spec.worker_num >= 1 || spec.chief_num == 1 && spec.ps_num == 0) && spec.chief_num <= 1 && spec.evaluator_num <= 1);
                prop_assert_eq!(spec.ps_num >= 1, strategy == Strategy::ParameterServer);
                prop_assert!(spec.chief_num + spec.worker_num + spec.ps_num <= MEMBERS_MAX);
                let json = serde_json::to_value(&spec).expect("not JSON");
                prop_assert_eq!(read::<JobSpec>(&json), Ok(spec));
            }
            Err(SpecError::TooManyWorkers { asked, fits }) => {
                prop_assert!(1 <= fits && fits < asked);
                let advised = JobSpec::try_from(JobRequest { worker_num: Some(fits), ..asked_for });
                prop_assert!(matches!(advised, Ok(_) | Err(SpecError::TooManyPs { .. })), "{:?}", advised);
            }
            Err(SpecError::TooManyPs { asked, fits }) => {
                prop_assert!(1 <= fits && fits < asked);
                let advised = JobSpec::try_from(JobRequest { ps_num: Some(fits), ..asked_for });
                prop_assert!(advised.is_ok(), "{:?}", advised);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// A count that is absent, small, near the limit, or arbitrary.
fn count() -> impl proptest::strategy::Strategy<Value = Option<u32>> {
    prop::option::of(prop_oneof![0..4_u32, (MEMBERS_MAX - 3)..(MEMBERS_MAX + 3), any::<u32>()])
}

#[test]
fn a_run_policy_that_cannot_work_is_refused() {
    let with = |strategy, run_policy| JobRequest { run_policy, ..request(strategy) };
    let refused = |request: JobRequest| JobSpec::try_from(request).map_err(|error| (error.code(), error.to_string()));
    let deciding = |policy| RunPolicy { success_policy: Some(policy), ..RunPolicy::default() };
    for (request, sentence) in [
        (
            with(Strategy::AllReduce, RunPolicy { start_timeout_seconds: 0, ..RunPolicy::default() }),
            "start-timeout is 0: use at least 1 s",
        ),
        (
            with(Strategy::AllReduce, RunPolicy { deadline_seconds: Some(0), ..RunPolicy::default() }),
            "deadline is 0: use at least 1 s",
        ),
        (
            with(Strategy::AllReduce, deciding(SuccessPolicy::Chief)),
            "success-policy chief needs a chief: the job has none",
        ),
        (
            with(Strategy::ParameterServer, deciding(SuccessPolicy::All)),
            "success-policy all does not work in a ParameterServer job with a chief: its workers are servers, which never end",
        ),
    ] {
        assert_eq!(refused(request), Err((ErrorCode::BadRunPolicy, sentence.to_owned())));
    }
}

#[test]
fn a_job_with_a_long_name_is_refused_if_the_name_of_a_pod_would_exceed_63_characters() {
    let named = |length: usize, workers: u32| {
        let name = "x".repeat(length).parse().expect("an invalid name");
        let request = JobRequest { worker_num: Some(workers), ..JobRequest::new(name, Strategy::AllReduce) };
        JobSpec::try_from(request)
    };
    let pod = "x".repeat(54) + "-worker-10";
    let error = named(54, 11).expect_err("a pod name with 64 characters is not refused");
    assert_eq!((error.code(), error.to_string().contains(&pod)), (ErrorCode::BadTask, true), "{error}");
    let spec = named(54, 10).expect("a pod name with 63 characters is refused");
    assert!(named(40, 5000).is_ok());
    let grown = JobPatch { worker_num: Some(11), ..JobPatch::default() };
    let now = Some(Workers { min: 1, max: 10 });
    assert!(matches!(spec.patched(now, grown), Err(SpecError::LongName { .. })));
}
