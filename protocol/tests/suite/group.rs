//! Groups of replicas: how users write a group, which groups are refused, and which options each replica gets.

use protocol::error::ErrorCode;
use protocol::group::{Group, Template, WorkerGroup};
use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobRequest, JobSpec, SpecError, Strategy};
use serde_json::json;

fn request(groups: Vec<Group>) -> JobRequest {
    JobRequest { groups, ..JobRequest::new("digits".parse().expect("an invalid name"), Strategy::AllReduce) }
}

fn workers(text: &str) -> Group {
    text.parse::<WorkerGroup>().expect("an invalid group").0
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
fn the_last_colon_of_a_group_separates_the_amounts_from_the_number_of_workers() {
    let group = workers("cpu=2:4,memory=8Gi,gpus=1:3");
    assert_eq!((group.role, group.count, group.gpus), (Role::Worker, 3, Some(1)));
    assert_eq!(group.cpu.map(|cpu| (cpu.request, cpu.limit)), Some(("2".to_owned(), "4".to_owned())));
    assert_eq!(group.memory.map(|memory| memory.to_string()), Some("8Gi".to_owned()));
}

#[test]
fn a_malformed_group_is_refused_with_the_reason() {
    let cases = [
        ("cpu=2", "the number of workers is missing"),
        ("cpu=2:0", "the number of workers is 0"),
        ("cpu=2:two", "\"two\" is not a number of workers"),
        ("2:4", "\"2\" names no amount"),
        (":4", "\"\" names no amount"),
        ("disk=2:4", "\"disk\" is not a resource"),
        ("cpu=1,cpu=2:4", "cpu is named twice"),
        ("cpu=x:4", "\"x\" is not a valid amount"),
        ("gpus=-1:4", "invalid digit"),
    ];
    for (text, why) in cases {
        let error = text.parse::<WorkerGroup>().expect_err(text).to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn a_role_has_as_many_replicas_as_all_its_groups_together() {
    let groups = vec![workers("cpu=6:2"), workers("cpu=32:1")];
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
    let mut request = request(vec![workers("cpu=6:2")]);
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
        (Group { command: vec!["a".to_owned(), "\0".to_owned()], ..workers("cpu=1:2") }, SpecError::NulInArgument(2)),
        (empty, SpecError::NoWorkers),
    ] {
        assert_eq!(JobSpec::try_from(request(vec![group])), Err(error));
    }
    let with_empty = request(vec![workers("cpu=1:2"), Group::new(Role::Worker, 0)]);
    assert_eq!(JobSpec::try_from(with_empty), Err(SpecError::EmptyGroup(2)));
    let many = request(vec![workers("cpu=1:1"); 65]);
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
    let nobody = JobRequest { worker_num: Some(0), ..request(vec![]) };
    assert_eq!(JobSpec::try_from(nobody), Err(SpecError::NoWorkers));
}
