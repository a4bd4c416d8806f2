//! Tests of TFJobs of the cluster that change while no master runs.

use master::agent_token::AgentKey;
use master::kube::tfjobs;
use master::tfjob::{Memory, Need, Place, Watched};
use protocol::ids::UnixMillis;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::server::{ApiServer, Asked, Kind, NAMESPACE};
use super::world::{begin, jobs};

fn place() -> Place {
    Place::Pods { namespace: NAMESPACE.to_owned(), honours_root: false }
}

/// A TFJob that is suspended, so it has no pods.
fn tfjob(name: &str, uid: &str) -> Value {
    let container = json!({ "name": "tensorflow", "image": "mnist:1", "command": ["python", "mnist.py"] });
    let worker = json!({ "template": { "spec": { "containers": [container] } } });
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob",
        "metadata": { "name": name, "namespace": NAMESPACE, "uid": uid, "generation": 1 },
        "spec": { "runPolicy": { "suspend": true }, "tfReplicaSpecs": { "Worker": worker } },
    })
}

/// Defines the kind TFJob as `client install --tfjobs` does.
fn define(server: &ApiServer) {
    let kind = json!({
        "name": "tfjobs", "singularName": "tfjob", "namespaced": true, "kind": "TFJob", "verbs": ["list"],
        "categories": ["muster"],
    });
    let list = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "kubeflow.org/v1", "resources": [kind],
        "metadata": { "name": "apis/kubeflow.org/v1" },
    });
    server.put("", list);
}

#[tokio::test]
async fn the_job_of_a_tfjob_that_was_deleted_while_no_master_ran_is_deleted_and_a_new_tfjob_gets_a_new_job() {
    let (server, folder) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    define(&server);
    let backend = begin(&server).await.with_agent_image(Some("muster-master:1".parse().expect("not an image")));
    let jobs = jobs(&server, backend, AgentKey::random(), folder.path());
    for name in ["deleted", "again"] {
        let earlier = Watched::of(&tfjob(name, "earlier"), &place());
        let Need::Apply(read) = earlier.need(None, &Memory::default(), UnixMillis(0)) else { panic!("{earlier:?}") };
        jobs.apply(*read).await.expect("not accepted");
    }
    let again = server.put("tfjobs", tfjob("again", ""));
    let uid = again["metadata"]["uid"].as_str().expect("no uid").to_owned();

    let _following = AbortOnDropHandle::new(tokio::spawn(tfjobs::run(server.cluster(), jobs, place())));
    let has = |asked: &[Asked], kind: Kind, path: &str, part: &str| {
        asked.iter().any(|one| one.kind == kind && one.path == path && one.body.to_string().contains(part))
    };
    server
        .until("both jobs are deleted, and one of them is created again", |asked| {
            let deleted = |name: &str| has(asked, Kind::Delete, &format!("configmaps/muster-{name}"), "");
            deleted("deleted") && deleted("again") && has(asked, Kind::Create, "configmaps", &uid)
        })
        .await;
    server
        .until("the new job is shown", |asked| has(asked, Kind::Patch, "tfjobs/again/status", "TFJobSuspended"))
        .await;
}
