//! Helpers of these tests: jobs, pods and waiting.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use job::key::JobKey;
use job::observation::PodState;
use master::agents::client::AgentClient;
use master::agents::token::AgentKey;
use master::backend::kube::{KubeBackend, PodRules};
use master::backend::{PodBackend, PodSpec, PodTable};
use master::driver::Context;
use master::logs::{Archive, BUDGET};
use master::registry::{Jobs, KEPT_FINISHED};
use master::store::kube::KubeStore;
use master::tally::Tally;
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;
use serde_json::{Value, json};
use testkit::conformance::store as conformance;
use testkit::fake::{code_below, history_below};
use tokio::sync::watch;
use tokio::time::timeout;

use super::objects::{Answer, failure};
use super::server::{ApiServer, DEADLINE, NAMESPACE};

/// A back end that has read all pods of the server.
pub(crate) async fn begin(server: &ApiServer) -> KubeBackend {
    begin_with(server, PodRules::default()).await
}

/// Like [`begin`], with these rules for pods.
pub(crate) async fn begin_with(server: &ApiServer, rules: PodRules) -> KubeBackend {
    KubeBackend::begin(&server.cluster(), rules).await.expect("the server does not answer")
}

/// Like [`begin`], with an image from which the agent is copied into pods.
pub(crate) async fn begin_with_agent(server: &ApiServer) -> KubeBackend {
    begin_with(server, PodRules { agent_image: "muster-master:1".parse().ok(), ..PodRules::default() }).await
}

/// The jobs of a master with this back end and this key. The master's files are below `folder`.
pub(crate) fn jobs(server: &ApiServer, backend: KubeBackend, agent_key: AgentKey, folder: &Path) -> Arc<Jobs> {
    let context = Context {
        store: Arc::new(KubeStore::new(&server.cluster())),
        backend: Arc::new(backend),
        agents: AgentClient::new(),
        agent_key,
        boot_id: "first".to_owned(),
        code: code_below(folder),
        tally: Tally::default(),
        history: history_below(folder),
    };
    let jobs = Jobs::new(Arc::new(context), Archive::new(folder.to_owned(), BUDGET), KEPT_FINISHED);
    tokio::spawn(Arc::clone(&jobs).run());
    jobs
}

/// The job `digits` with this uid.
pub(crate) fn job(uid: &str) -> JobKey {
    JobKey { name: "digits".parse().expect("not a job's name"), uid: uid.to_owned() }
}

pub(crate) fn worker(index: u32) -> ReplicaId {
    format!("worker-{index}").parse().expect("not a replica")
}

/// A spec with an image and two workers.
pub(crate) fn spec(name: &str) -> JobSpec {
    JobSpec { image: Some("digits:1".parse().expect("not an image")), ..(*conformance::record(name).spec).clone() }
}

/// The pod spec of worker-0 of the job with this uid.
pub(crate) fn wanted(uid: &str) -> PodSpec {
    PodSpec {
        job: job(uid),
        replica: worker(0),
        image: Some("digits:1".parse().expect("not an image")),
        work_dir: None,
        processes: 1,
        command: ["python", "exec.py"].map(str::to_owned).into(),
        labels: std::collections::BTreeMap::new(),
        second_code_folder: None,
        template: None,
        options: protocol::pod::PodOptions::default(),
        brings_code: false,
        agent_token_sha256: "0".repeat(64),
    }
}

/// The pod of a worker of the job with this uid, as a master creates it.
pub(crate) fn pod(uid: &str, index: u32, status: &Value) -> Value {
    let labels = json!({
        "app.kubernetes.io/managed-by": "muster", "muster/job": "digits", "muster/job-uid": uid,
        "muster/role": "worker", "muster/index": index.to_string(),
    });
    let owner =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "muster-digits", "uid": uid, "controller": true });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("digits-worker-{index}"), "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner],
        },
        "spec": { "containers": [{ "name": "agent", "image": "digits:1" }] },
        "status": status,
    })
}

/// A pod with the name of the pod of worker-0. No master has created it.
pub(crate) fn foreign_pod() -> Value {
    let metadata = json!({ "name": "digits-worker-0", "namespace": NAMESPACE });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "containers": [{ "name": "web" }] } })
}

pub(crate) fn running(ip: &str) -> Value {
    json!({ "phase": "Running", "podIP": ip })
}

pub(crate) fn pending() -> Value {
    json!({ "phase": "Pending" })
}

pub(crate) fn evicted() -> Value {
    json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory." })
}

/// A transient error.
pub(crate) fn internal_error() -> Answer {
    failure(500, "InternalError", "etcdserver: leader changed")
}

/// Waits until `test` accepts the pods of the job. `what` names the condition in the panic message.
pub(crate) async fn until(
    pods: &KubeBackend,
    job: &JobKey,
    what: &str,
    test: impl FnMut(&PodTable) -> bool,
) -> PodTable {
    let mut table: watch::Receiver<PodTable> = pods.watch(job);
    match timeout(DEADLINE, table.wait_for(test)).await {
        Ok(seen) => seen.expect("the back end has dropped the table").clone(),
        Err(_) => panic!("this did not happen in time: {what}; the pods are {:?}", pods.watch(job).borrow()),
    }
}

/// The address of a worker, if the worker's pod runs.
pub(crate) fn ip(table: &PodTable, index: u32) -> Option<String> {
    match &table.get(&worker(index))?.state {
        PodState::Running(addresses) => Some(addresses.agent.ip().to_string()),
        PodState::Pending { .. }
        | PodState::Unusable { .. }
        | PodState::Leaving { .. }
        | PodState::Disrupted { .. }
        | PodState::Terminated { .. } => None,
    }
}

/// The texts of an error and its causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error: &&dyn Error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
