//! Tests of `/v1/tfjobs`: a TFJob is applied, applied again, suspended and shown.

use launchers::kubeflow::{self, ReplicaHost};
use protocol::code::CodeId;
use protocol::patch::JobPatch;
use protocol::view::JobState;
use serde_json::{Value, json};
use testkit::fake::FakeAgent;

use crate::service::delivering::keep;
use crate::service::harness::{Master, reach, until};
use crate::service::pushing::keep_other;

const TFJOBS: &str = "/v1/tfjobs";
const TFJOB_DRY_RUNS: &str = "/v1/dry-runs/tfjobs";

/// The request to apply a TFJob with two workers. `policy` is the run policy of the TFJob.
fn request(name: &str, policy: &Value, options: &Value) -> Value {
    let container = json!({ "name": "tensorflow", "image": "mnist:1", "command": ["python", "mnist.py"] });
    let worker = json!({ "replicas": 2, "template": { "spec": { "containers": [container] } } });
    let document = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": { "name": name },
        "spec": { "runPolicy": policy, "tfReplicaSpecs": { "Worker": worker } },
    });
    json!({ "document": document.to_string(), "options": options })
}

async fn agents(master: &Master, name: &str) -> Vec<FakeAgent> {
    let spec = master.jobs.table.find(&name.parse().expect("not a name")).expect("no job").view.borrow().spec.clone();
    master.started(&spec).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tfjob_is_accepted_once_and_is_shown_as_an_object_with_conditions() {
    let master = Master::serving(None).await;
    let body = request("mnist", &json!({}), &json!({}));
    let created = master.post(TFJOBS, &body).await;
    assert_eq!(created.status, 201, "{created:?}");
    assert_eq!(created.json()["warnings"][0]["path"], "spec.tfReplicaSpecs.Worker.template.spec.containers[0].image");
    assert_eq!(created.json()["job"]["spec"]["worker_num"], 2);
    for agent in agents(&master, "mnist").await {
        agent.exit(protocol::agent::ExitOutcome::Code(0));
    }
    let job = master.jobs.table.find(&"mnist".parse().expect("not a name")).expect("no job");
    reach(&job, JobState::Succeeded).await;
    let again = master.post(TFJOBS, &body).await;
    assert_eq!((again.status, &again.json()["job"]["state"]), (200, &json!("succeeded")));
    let other = master.post(TFJOBS, &request("mnist", &json!({ "backoffLimit": 1 }), &json!({}))).await;
    assert_eq!((other.status, &other.json()["code"]), (409, &json!("job_exists")));

    let object = master.get("/v1/jobs/mnist/tfjob").await.json();
    let newest = object["status"]["conditions"].as_array().expect("no conditions").last().expect("no condition");
    assert_eq!((&newest["type"], &newest["reason"]), (&json!("Succeeded"), &json!("TFJobSucceeded")), "{object:#}");
    assert_eq!(object["status"]["replicaStatuses"], json!({ "Worker": { "succeeded": 2 } }));
    let listed = master.get(TFJOBS).await.json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_tfjob_is_resumed_when_it_is_applied_without_suspend() {
    let master = Master::serving(None).await;
    let suspended = request("later", &json!({ "suspend": true }), &json!({}));
    assert_eq!(master.post(TFJOBS, &suspended).await.status, 201);
    let job = master.jobs.table.find(&"later".parse().expect("not a name")).expect("no job");
    until(&job, |view| view.state == JobState::Suspended).await;
    assert_eq!(master.get("/v1/jobs/later/tfjob").await.json()["spec"]["runPolicy"]["suspend"], true);
    assert_eq!(master.post(TFJOBS, &request("later", &json!({}), &json!({}))).await.status, 200);
    until(&job, |view| view.state == JobState::Running).await;
    assert_eq!(master.post(TFJOBS, &suspended).await.status, 200);
    until(&job, |view| view.state == JobState::Suspended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_a_tfjob_with_other_code_is_refused_and_the_error_names_the_push() {
    let master = Master::new();
    let (code, other) = (keep(master.jobs.code()), keep_other(&master));
    let apply = async |code: CodeId| {
        let request = request("brought", &json!({}), &json!({ "code": code, "script": "train.py" }));
        let request = serde_json::from_value(request).expect("not a request");
        let read =
            kubeflow::read(&request, &ReplicaHost::Pods { namespace: "training".to_owned(), honours_root: false })
                .expect("an invalid TFJob");
        let is_fine = master.jobs.requests.dry_run_of_tfjob(&read).await.is_ok();
        let applied = master.jobs.requests.apply(read).await.map(drop).map_err(|error| error.to_string());
        assert_eq!(applied.is_ok(), is_fine, "the dry run and `apply` disagree: {applied:?}");
        applied
    };
    apply(code).await.expect("the first apply failed");
    apply(code).await.expect("an apply with the same code failed");
    let refused = "tfjob brought is on record with other code. To start its scripts again with the new code: \
                   client push brought FOLDER";
    assert_eq!(apply(other).await, Err(refused.to_owned()));
    let name = "brought".parse().expect("not a name");
    let patch = JobPatch { code: Some(other), ..JobPatch::default() };
    master.jobs.requests.patch(&name, patch).await.expect("the push failed");
    apply(other).await.expect("an apply with the pushed code failed");
    assert_eq!(apply(code).await, Err(refused.to_owned()));
    let cancelled = master.jobs.requests.wish(&name, master::store::Wish::Cancel).await;
    cancelled.expect("the wish was not recorded");
    let ended = "tfjob brought has ended, or is being stopped, so it takes no new code. To run it again with the new \
                 code, first delete the old job: client delete brought";
    assert_eq!(apply(code).await, Err(ended.to_owned()));
    apply(other).await.expect("an apply of the ended job with its own code failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_how_the_tfjob_would_change_its_job_and_changes_nothing() {
    let master = Master::serving(None).await;
    let body = |suspend| request("later", &json!({ "suspend": suspend }), &json!({}));
    assert_eq!(master.post(TFJOBS, &body(true)).await.status, 201);
    let checked = master.post(TFJOB_DRY_RUNS, &body(false)).await;
    let answer = checked.json();
    assert_eq!((checked.status, &answer["on_record"]), (200, &json!(true)), "{checked:?}");
    assert_eq!(answer["change"], json!({ "suspended": false }));
    assert_eq!(master.get("/v1/jobs/later/tfjob").await.json()["spec"]["runPolicy"]["suspend"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_creates_nothing_and_a_refusal_names_each_wrong_field() {
    let master = Master::serving(None).await;
    let checked = master.post(TFJOB_DRY_RUNS, &request("mnist", &json!({}), &json!({}))).await;
    assert_eq!((checked.status, &checked.json()["pods"]), (200, &json!([])), "{checked:?}");
    let warned = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].image";
    assert_eq!(checked.json()["warnings"][0]["path"], warned);
    let refused = master.post(TFJOBS, &request("mnist", &json!({ "wrong": 1, "backoffLimit": "x" }), &json!({}))).await;
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("bad_tfjob")), "{refused:?}");
    let detail = "the TFJob is refused: spec.runPolicy.backoffLimit: \"x\" is not a whole number from 0 to 4294967295; \
                  spec.runPolicy.wrong: this field is not known";
    assert_eq!(refused.json()["detail"], detail);
    assert_eq!(master.get(TFJOBS).await.json(), json!({ "items": [] }));

    // A job that was not submitted as a TFJob is not shown as a TFJob.
    let spec = crate::service::elastic::elastic("own", 1, 2);
    master.submit(spec).await;
    assert_eq!(master.get("/v1/jobs/own/tfjob").await.status, 404);
    assert_eq!(master.post(TFJOB_DRY_RUNS, &request("own", &json!({}), &json!({}))).await.status, 409);
}
