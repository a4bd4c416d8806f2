//! Groups of replicas: which groups are refused, and which options each replica gets.

use protocol::error::ErrorCode;
use protocol::group::{Group, Template};
use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobRequest, JobSpec, SpecError, Strategy};
use serde_json::{Value, json};

fn request(groups: Vec<Group>) -> JobRequest {
    JobRequest { groups, ..JobRequest::new("digits".parse().expect("an invalid name"), Strategy::AllReduce) }
}

/// This number of workers, each with this amount of CPU.
fn workers(cpu: &str, count: u32) -> Group {
    Group { cpu: Some(cpu.parse().expect("an invalid amount")), ..Group::new(Role::Worker, count) }
}

fn id(text: &str) -> ReplicaId {
    text.parse().expect("an invalid replica")
}

fn templated(tf_port: u16, pod: serde_json::Value) -> Group {
    let template = Template { container: "tensorflow".to_owned(), tf_port, pod };
    Group { template: Some(template), ..Group::new(Role::Worker, 2) }
}

fn refused(request: JobRequest) -> (ErrorCode, String) {
    let error = JobSpec::try_from(request).expect_err("not refused");
    (error.code(), error.to_string())
}

#[test]
fn a_role_has_as_many_replicas_as_all_its_groups_together() {
    let groups = vec![workers("6", 2), workers("32", 1)];
    let spec = JobSpec::try_from(request(groups.clone())).expect("an invalid job");
    assert_eq!(spec.worker_num, 3);
    let cpu = |replica: &str| spec.pod_of(id(replica)).cpu.map(|cpu| cpu.to_string());
    assert_eq!(["worker-0", "worker-1", "worker-2"].map(cpu), ["6", "6", "32"].map(|cpu| Some(cpu.to_owned())));
    // In a job that was scaled beyond its groups, the further replicas belong to the last group.
    assert_eq!(cpu("worker-7"), Some("32".to_owned()));
    assert_eq!(cpu("ps-0"), None);
    let other = JobRequest { worker_num: Some(4), ..request(groups) };
    let sentence = "the groups of role worker have 3 replicas, but the job has 4 of this role: make both equal";
    assert_eq!(refused(other), (ErrorCode::BadGroups, sentence.to_owned()));
}

#[test]
fn a_group_uses_the_jobs_options_and_command_if_it_has_none_of_its_own() {
    let mut request = request(vec![workers("6", 2)]);
    request.pod.memory = Some("4Gi".parse().expect("an invalid amount"));
    request.args = vec!["--epochs".to_owned()];
    let spec = JobSpec::try_from(request.clone()).expect("an invalid job");
    let pod = spec.pod_of(id("worker-1"));
    assert_eq!((pod.cpu.map(|cpu| cpu.to_string()), pod.memory), (Some("6".to_owned()), spec.pod.memory.clone()));
    assert_eq!(spec.command_of(id("worker-1")), ["python", "exec.py", "--epochs"]);
    request.groups[0].command = vec!["bash".to_owned(), "run.sh".to_owned()];
    let spec = JobSpec::try_from(request).expect("an invalid job");
    assert_eq!(spec.command_of(id("worker-1")), ["bash", "run.sh"]);
}

#[test]
fn invalid_groups_are_refused() {
    let spec = json!({ "spec": {} });
    assert!(JobSpec::try_from(request(vec![templated(2222, spec.clone())])).is_ok());
    let empty = Group::new(Role::Worker, 0);
    for (group, error) in [
        (templated(7896, spec.clone()), SpecError::GroupPort { group: 1, port: 7896 }),
        (templated(0, spec), SpecError::GroupPort { group: 1, port: 0 }),
        (templated(2222, json!("text")), SpecError::NoTemplate(1)),
        (Group { command: vec!["a".to_owned(), "\0".to_owned()], ..workers("1", 2) }, SpecError::NulInArgument(2)),
        (empty, SpecError::NoWorkers),
    ] {
        assert_eq!(JobSpec::try_from(request(vec![group])), Err(error));
    }
    let with_empty = request(vec![workers("1", 2), Group::new(Role::Worker, 0)]);
    assert_eq!(JobSpec::try_from(with_empty), Err(SpecError::EmptyGroup(2)));
    let many = request(vec![workers("1", 1); 65]);
    assert_eq!(JobSpec::try_from(many), Err(SpecError::TooManyGroups(65)));
}

#[test]
fn templates_that_are_too_large_for_the_record_are_refused() {
    let large = templated(2222, json!({ "metadata": { "annotations": { "a": "x".repeat(600_000) } } }));
    let (code, sentence) = refused(request(vec![large]));
    assert_eq!(code, ErrorCode::BadGroups);
    assert!(sentence.ends_with("bytes as JSON: use at most 524288 in total"), "{sentence}");
}

#[test]
fn a_chief_can_train_without_workers() {
    let alone = JobRequest { worker_num: Some(0), chief_num: Some(1), ..request(vec![]) };
    assert_eq!(JobSpec::try_from(alone).expect("an invalid job").worker_num, 0);
}

/// A group with a template whose container has this `env`.
fn with_env(env: &serde_json::Value) -> Group {
    templated(2222, json!({ "spec": { "containers": [{ "name": "tensorflow", "env": env }] } }))
}

fn variables(group: &Group) -> Vec<(String, String)> {
    let template = group.template.as_ref().expect("no template");
    template.variables().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[test]
fn the_values_of_a_template_contain_earlier_values_as_in_kubernetes() {
    let base = json!({ "name": "BASE", "value": "/data" });
    for (value, expected) in [
        ("$(BASE)/x", "/data/x"),
        ("$(BASE)$(BASE)", "/data/data"),
        ("$$(BASE)", "$(BASE)"),
        ("$$$(BASE)", "$/data"),
        ("$(LATER) $(UNKNOWN) $()", "$(LATER) $(UNKNOWN) $()"),
        ("$(SELF)", "$(SELF)"),
        ("$(RANK) $(odd.name) $(FROM)", "7 odd $(FROM)"),
        ("$BASE ${BASE} $(BASE", "$BASE ${BASE} $(BASE"),
        ("$(ABSENT)$(NONE)", ""),
        ("", ""),
    ] {
        let env = json!([
            base, { "name": "ABSENT" }, { "name": "NONE", "value": null }, { "name": "RANK", "value": "7" },
            { "name": "odd.name", "value": "odd" }, { "name": "FROM", "valueFrom": { "fieldRef": {} } },
            { "name": "SELF", "value": value }, { "name": "LATER", "value": "later" }, { "name": "BASE", "value": "new" },
        ]);
        let pairs =
            [("BASE", "/data"), ("ABSENT", ""), ("NONE", ""), ("SELF", expected), ("LATER", "later"), ("BASE", "new")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables(&with_env(&env)), pairs, "{value}");
    }
}

#[test]
fn variables_of_a_template_that_are_no_strings_or_grow_without_bound_are_refused() {
    let mut doubled = vec![json!({ "name": "A0", "value": "x".repeat(1000) })];
    doubled.extend((1..40).map(|at| json!({ "name": format!("A{at}"), "value": format!("$(A{0})$(A{0})", at - 1) })));
    let many = (0..60).map(|at| json!({ "name": format!("B{at}"), "value": "$(A6)$(A6)" }));
    let many: Vec<_> = doubled[..7].iter().cloned().chain(many).collect();
    for (env, why) in [
        (json!({ "A": "b" }), "env must be a list of objects with name and value"),
        (json!(["A"]), "env must be a list of objects with name and value"),
        (json!([{ "name": "A", "value": 64 }]), "env[A].value must be a string"),
        (json!(doubled), "env[A8].value is too long after $(NAME) is replaced, or all values together are too long"),
        (json!(many), "env[B48].value is too long after $(NAME) is replaced, or all values together are too long"),
    ] {
        let sentence = format!("the template of group 1: {why}");
        assert_eq!(refused(request(vec![with_env(&env)])), (ErrorCode::BadGroups, sentence));
    }
}

#[test]
fn a_record_with_wrong_variables_that_an_earlier_version_has_accepted_is_read_without_them() {
    let env = json!([{ "name": "A", "value": 64 }, "B", { "name": "C", "value": "c" }]);
    let valid = JobSpec::try_from(request(vec![with_env(&json!([]))])).expect("an invalid job");
    let mut record = serde_json::to_value(&valid).expect("not JSON");
    record["groups"][0]["template"]["pod"]["spec"]["containers"][0]["env"] = env;
    let read: JobSpec = serde_json::from_value(record).expect("the record is refused");
    assert_eq!(variables(&read.groups[0]), [("C".to_owned(), "c".to_owned())]);
}

#[test]
fn a_pod_with_gpus_has_shared_memory_unless_the_job_says_what_is_there() {
    let shm = |pod: Value| {
        let request = json!({"name": "digits", "strategy": "AllReduce", "image": "a/b:1", "pod": pod});
        let spec: JobSpec = serde_json::from_value(request).expect("not a job");
        spec.pod_of(id("worker-0")).shm.map(|size| size.to_string())
    };
    let own = |text: &str| Some(text.to_owned());
    assert_eq!(shm(json!({})), None);
    assert_eq!(shm(json!({"gpus": 0, "memory": "4Gi"})), None);
    assert_eq!(shm(json!({"gpus": 8})), own("8Gi"));
    assert_eq!(shm(json!({"gpus": 8, "memory": "1Gi:4Gi"})), own("2147483648"));
    assert_eq!(shm(json!({"gpus": 8, "shm": "1Gi"})), own("1Gi"));
    assert_eq!(shm(json!({"gpus": 8, "volumes": ["empty:/dev/shm"]})), None);
}
