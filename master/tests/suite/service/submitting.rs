//! Tests of submitting over HTTP: `POST /v1/jobs`, and the prototype's `GET /create`.

use master::store::{JobStore, Wish};
use protocol::view::JobState;
use serde_json::{Value, json};

use crate::service::harness::{Answer, Master, client, reach, spec};

const DRY_RUNS: &str = "/v1/dry-runs/jobs";

fn job(name: &str) -> Value {
    json!({"name": name, "strategy": "AllReduce", "worker_num": 2})
}

/// Asserts that `answer` refuses the request with this status and code, that the detail contains `text`, and that there
/// is no job.
async fn refused(master: &Master, answer: Answer, expected: (u16, &str), text: &str) {
    assert_eq!((answer.status, answer.code().as_str()), expected, "{answer:?}");
    let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains(text), "{detail:?} does not contain {text:?}");
    assert_eq!(master.get("/v1/jobs").await.json()["jobs"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_job_is_created_and_shown_with_every_default() {
    let master = Master::serving(None).await;
    let answer = master.post("/v1/jobs", &json!({"name": "new", "strategy": "ParameterServer"})).await;
    assert_eq!((answer.status, answer.header("content-type")), (201, "application/json"));
    let view = answer.json();
    let spec = json!({"name": "new", "strategy": "ParameterServer", "worker_num": 2, "ps_num": 1, "chief_num": 1, "evaluator_num": 0});
    assert_eq!(view["spec"], spec);
    assert_eq!(view["name"], "new");
    let replicas: Vec<&str> =
        view["replicas"].as_array().expect("not a list").iter().filter_map(|r| r["replica"].as_str()).collect();
    assert_eq!(replicas, ["chief-0", "worker-0", "worker-1", "ps-0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_submit_names_the_template_fields_that_have_no_effect() {
    let master = Master::serving(None).await;
    let container = json!({"name": "main", "image": "digits:1", "stdin": true});
    let template = json!({"container": "main", "pod": {"spec": {"containers": [container]}}});
    let group = json!({"role": "worker", "count": 1, "template": template});
    let body = json!({"name": "told", "strategy": "AllReduce", "groups": [group]});
    let answer = master.post("/v1/jobs", &body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.json()["warnings"][0]["path"], "groups[0].template.pod.spec.containers[0].stdin");
    assert_eq!(master.get("/v1/jobs/told").await.json().get("warnings"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn submitting_the_same_job_again_returns_the_existing_job() {
    let master = Master::serving(None).await;
    let first = master.post("/v1/jobs", &job("same")).await;
    let second = master.post("/v1/jobs", &job("same")).await;
    assert_eq!((first.status, second.status), (201, 200));
    assert_eq!(first.json()["uid"], second.json()["uid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_creates_nothing_and_tells_whether_the_master_lacks_the_code() {
    let master = Master::serving(None).await;
    let code = "0".repeat(64);
    for (body, answer) in [
        (job("new"), json!({"pods": []})),
        (json!({"name": "brought", "strategy": "AllReduce", "code": code}), json!({"pods": [], "lacks_code": true})),
    ] {
        let checked = master.post(DRY_RUNS, &body).await;
        assert_eq!((checked.status, checked.json()), (200, answer), "{checked:?}");
    }
    let unfit = master.post(DRY_RUNS, &json!({"name": "a"})).await;
    refused(&master, unfit, (422, "bad_request"), "strategy").await;
    let unknown = master.post(&format!("{DRY_RUNS}?force=true"), &job("new")).await;
    refused(&master, unknown, (400, "bad_request"), "force").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_with_a_parameter_creates_nothing() {
    let master = Master::serving(None).await;
    for parameter in ["dry_run", "replace"] {
        let answer = master.post(&format!("/v1/jobs?{parameter}=true"), &job("new")).await;
        refused(&master, answer, (400, "bad_request"), parameter).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_name_is_refused_except_in_a_dry_run_in_which_the_old_job_is_to_be_replaced() {
    let master = Master::serving(None).await;
    let first = master.post("/v1/jobs", &job("taken")).await;
    let other = json!({"name": "taken", "strategy": "AllReduce", "worker_num": 3});
    let create = master.get("/create?strategy=AllReduce&n_worker=3&name=taken").await;
    for answer in [master.post("/v1/jobs", &other).await, master.post(DRY_RUNS, &other).await, create] {
        assert_eq!((answer.status, answer.code().as_str()), (409, "job_exists"));
    }
    let same = master.post(DRY_RUNS, &job("taken")).await;
    assert_eq!((same.status, same.json()), (200, json!({"on_record": true, "pods": []})));
    let replacing = master.post("/v1/dry-runs/jobs?replace=true", &other).await;
    assert_eq!((replacing.status, replacing.json()), (200, json!({"pods": []})));
    assert_eq!(master.get("/v1/jobs/taken").await.json()["uid"], first.json()["uid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_submissions_of_the_same_job_create_it_once() {
    let master = Master::serving(None).await;
    let body = job("race");
    let answers = futures_util::future::join_all((0..16).map(|_| master.post("/v1/jobs", &body))).await;
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![200; 15], vec![201]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_job_is_refused_with_the_error_code_of_its_fault() {
    let master = Master::serving(None).await;
    let cases = [
        (json!({"name": "a", "strategy": "AllReduce", "worker_num": 0}), "bad_worker_num", "worker-num is 0"),
        (json!({"name": "a", "strategy": "AllReduce", "worker_num": 100_000}), "bad_worker_num", "worker-num 100000"),
        (json!({"name": "a", "strategy": "AllReduce", "ps_num": 1}), "bad_ps_num", "ps-num is 1"),
        (json!({"name": "a", "strategy": "ParameterServer", "ps_num": 0}), "bad_ps_num", "ps-num is 0"),
        (json!({"name": "a", "strategy": "AllReduce", "chief_num": 2}), "bad_chief_num", "chief-num 2"),
        (json!({"name": "a", "strategy": "AllReduce", "evaluator_num": 2}), "bad_evaluator_num", "evaluator-num 2"),
        (json!({"name": "a", "strategy": "AllReduce", "env": {"RANK": "0"}}), "bad_env", "RANK"),
        (json!({"name": "a", "strategy": "AllReduce", "env": {"OK": "a\0b"}}), "bad_env", "NUL"),
        (json!({"name": "a", "strategy": "AllReduce", "args": ["a\0b"]}), "bad_args", "argument 1"),
        (json!({"name": "a", "strategy": "AllReduce", "work_dir": "here"}), "bad_work_dir", "here"),
        (json!({"name": "A.b", "strategy": "AllReduce"}), "bad_request", "A.b"),
        (json!({"name": "a", "strategy": "Ring"}), "bad_request", "Ring"),
        (json!({"name": "a", "strategy": "AllReduce", "env": {"A=B": "0"}}), "bad_request", "A=B"),
        (json!({"name": "a", "strategy": "AllReduce", "worker_num": -1}), "bad_request", "-1"),
        (json!({"name": "a", "strategy": "AllReduce", "worker_num": 3.5}), "bad_request", "3.5"),
        (json!({"name": "a", "strategy": "AllReduce", "workers": 4}), "bad_request", "workers"),
        (json!({"strategy": "AllReduce"}), "bad_request", "name"),
    ];
    for (body, code, text) in cases {
        let answer = master.post("/v1/jobs", &body).await;
        refused(&master, answer, (422, code), text).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_a_json_object_is_refused() {
    let master = Master::serving(None).await;
    for body in ["", "{", "[]", "name=a", "\u{0}"] {
        let answer = Answer::of(client().post(master.url("/v1/jobs")).body(body)).await;
        refused(&master, answer, (422, "bad_request"), "the body is not a job").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_long_is_refused() {
    let master = Master::serving(None).await;
    let body = vec![b' '; 4 * 1024 * 1024 + 1];
    let answer = Answer::of(client().post(master.url("/v1/jobs")).body(body)).await;
    refused(&master, answer, (413, "too_large"), "the body").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_named_in_create_may_run_as_root_unless_the_query_forbids_it() {
    let master = Master::serving(None).await;
    for (query, pod) in [
        ("name=a&img=ubuntu", json!({"allow_root": true})),
        ("name=b&img=ubuntu&allow_root=false", json!(null)),
        ("name=c&img=ubuntu&allow_root=true", json!({"allow_root": true})),
        ("name=d", json!(null)),
        ("name=e&img=", json!(null)),
    ] {
        let answer = master.get(&format!("/create?strategy=AllReduce&n_worker=1&{query}")).await;
        assert_eq!((answer.status, &answer.json()["spec"]["pod"]), (200, &pod), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn create_also_accepts_the_parameter_names_of_the_job_api() {
    let master = Master::serving(None).await;
    let seed = master.get("/create?strategy=ParameterServer&n_worker=3&n_ps=1&img=ubuntu&name=seed").await;
    let ours = master.get("/create?strategy=ps&worker_num=3&ps_num=1&image=ubuntu&task=seed").await;
    assert_eq!((ours.status, &ours.json()["uid"]), (seed.status, &seed.json()["uid"]));
    let spec = &seed.json()["spec"];
    assert_eq!((&spec["worker_num"], &spec["ps_num"], &spec["image"]), (&json!(3), &json!(1), &json!("ubuntu")));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_or_invalid_parameters_of_create_are_refused_with_a_message() {
    let master = Master::serving(None).await;
    let cases = [
        ("", "bad_task", "\"name\" is missing"),
        ("name=a", "bad_strategy", "\"strategy\" is missing"),
        ("strategy=AllReduce", "bad_task", "\"name\" is missing"),
        ("name=a&strategy=Ring", "bad_strategy", "strategy \"Ring\""),
        ("name=A.b&strategy=AllReduce", "bad_task", "A.b"),
        ("name=abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdef&strategy=AllReduce", "bad_task", "abcdefghij"),
        ("name=a&strategy=AllReduce&n_worker=0", "bad_worker_num", "worker-num is 0"),
        ("name=a&strategy=AllReduce&n_worker=-1", "bad_worker_num", "n_worker \"-1\""),
        ("name=a&strategy=AllReduce&n_worker=3.5", "bad_worker_num", "n_worker \"3.5\""),
        ("name=a&strategy=AllReduce&n_worker=abc", "bad_worker_num", "n_worker \"abc\""),
        ("name=a&strategy=AllReduce&n_worker=", "bad_worker_num", "n_worker \"\""),
        ("name=a&strategy=AllReduce&n_worker=100000", "bad_worker_num", "worker-num 100000"),
        ("name=a&strategy=AllReduce&n_ps=1", "bad_ps_num", "ps-num is 1"),
        ("name=a&strategy=AllReduce&n_ps=x", "bad_ps_num", "n_ps \"x\""),
        ("name=a&strategy=ParameterServer&n_ps=0", "bad_ps_num", "ps-num is 0"),
        ("name=a&strategy=AllReduce&img=a&allow_root=yes", "bad_pod", "allow_root \"yes\""),
        ("name=a&strategy=AllReduce&workers=4", "bad_request", "\"workers\" is unknown"),
        ("name=a&strategy=AllReduce&n_worker=1&worker_num=2", "bad_request", "given twice"),
    ];
    for (query, code, text) in cases {
        let answer = master.get(&format!("/create?{query}")).await;
        refused(&master, answer, (400, code), text).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_for_create_has_no_effect() {
    let master = Master::serving(None).await;
    let answer = Answer::of(client().head(master.url("/create?strategy=AllReduce&name=a"))).await;
    assert_eq!(answer.status, 405);
    assert_eq!(master.get("/v1/jobs").await.json()["jobs"], json!([]));
}

#[tokio::test]
async fn a_spec_that_is_too_long_for_a_record_is_refused_with_its_length() {
    let master = Master::new();
    let secret: protocol::pod::ObjectName = "s".repeat(253).parse().expect("not a name");
    let pod = protocol::pod::PodOptions { env_secrets: vec![secret; 3000], ..protocol::pod::PodOptions::default() };
    let spec = protocol::job::JobSpec { pod, ..spec("long", 2) };
    let refused =
        master.jobs.requests.submit(spec.clone()).await.expect_err("a spec that is too long was accepted").to_string();
    assert!(refused.contains("bytes long as JSON, above 573440"), "{refused}");
    assert_eq!(master.store.get(&spec.name).await.expect("cannot read the record"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_with_a_uid_deletes_no_other_job_of_the_same_name() {
    let master = Master::serving(None).await;
    let spec = spec("renewed", 1);
    let job = master.submit(spec.clone()).await;
    reach(&job, JobState::Running).await;
    let other = master.delete("/v1/jobs/renewed?uid=another").await;
    assert_eq!((other.status, other.code().as_str()), (404, "unknown_job"));
    let unknown = master.delete("/v1/jobs/renewed?force=true").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (400, "bad_request"));
    let record = master.store.get(&spec.name).await.expect("cannot read the record").expect("no record").record;
    assert_eq!(record.wish, Wish::Run);
    assert_eq!(master.delete(&format!("/v1/jobs/renewed?uid={}", record.uid)).await.status, 202);
    master.forgotten(&spec.name).await;
}
