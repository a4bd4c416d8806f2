//! Tests of TFJobs of the cluster: a job whose TFJob was deleted is deleted too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use image_program::{PlainHosts, Registries};
use launchers::kubeflow::{NextStep, ObjectMemory, ReplicaHost, Watched};
use master::agents::token::AgentKey;
use master::kubeflow::programs::ProgramSource;
use master::kubeflow::{self, Site};
use master::registry::Jobs;
use protocol::ids::UnixMillis;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::server::{ApiServer, Asked, Kind, NAMESPACE, Reply};
use super::world::{begin_with_agent, jobs};

pub(super) fn place() -> ReplicaHost {
    ReplicaHost::Pods { namespace: NAMESPACE.to_owned(), honours_root: false }
}

/// A TFJob that is suspended, so it has no pods.
pub(super) fn tfjob(name: &str, uid: &str) -> Value {
    let container = json!({ "name": "tensorflow", "image": "mnist:1", "command": ["python", "mnist.py"] });
    let worker = json!({ "template": { "spec": { "containers": [container] } } });
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob",
        "metadata": { "name": name, "namespace": NAMESPACE, "uid": uid, "generation": 1 },
        "spec": { "runPolicy": { "suspend": true }, "tfReplicaSpecs": { "Worker": worker } },
    })
}

/// Defines the kind TFJob as `client install --tfjobs` does.
pub(super) fn define(server: &ApiServer) {
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

/// Follows the TFJobs of the server. The master may read these pull secrets.
pub(super) fn follow(server: &ApiServer, jobs: Arc<Jobs>, secrets: &[String]) -> AbortOnDropHandle<()> {
    let registries = Registries::new(PlainHosts::with_loopback(vec![])).expect("no HTTP client");
    let programs = Arc::new(ProgramSource::new(server.cluster(), registries, secrets));
    let site = Site { cluster: server.cluster(), jobs, place: place(), programs };
    AbortOnDropHandle::new(tokio::spawn(kubeflow::run(site)))
}

/// A master that follows the TFJobs of a server.
struct World {
    server: ApiServer,
    jobs: Arc<Jobs>,
    _folder: TempDir,
    _following: Option<AbortOnDropHandle<()>>,
}

impl World {
    /// A master that does not follow TFJobs yet.
    async fn begin() -> Self {
        let (server, folder) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
        define(&server);
        let backend = begin_with_agent(&server).await;
        let jobs = jobs(&server, backend, AgentKey::random(), folder.path());
        Self { server, jobs, _folder: folder, _following: None }
    }

    fn follow(self) -> Self {
        let following = follow(&self.server, Arc::clone(&self.jobs), &[]);
        Self { _following: Some(following), ..self }
    }

    /// Creates the job of a TFJob, as a master would that has seen this TFJob.
    async fn apply(&self, tfjob: &Value) {
        let tfjob = Watched::of(tfjob, &place(), &BTreeMap::new());
        let NextStep::Apply(read) = tfjob.need(None, &ObjectMemory::default(), UnixMillis(0)) else {
            panic!("{tfjob:?}")
        };
        self.jobs.requests.apply(*read).await.expect("not accepted");
    }

    /// Waits until the records of these jobs are deleted.
    async fn deletes(&self, names: &[&str]) {
        let is_deleted =
            |asked: &[Asked], name: &str| has(asked, Kind::Delete, &format!("configmaps/muster-{name}"), "");
        let what = format!("the jobs {names:?} are deleted");
        self.server.until(&what, |asked| names.iter().all(|name| is_deleted(asked, name))).await;
    }
}

/// Whether the API was asked for this, with `part` in the request's body.
fn has(asked: &[Asked], kind: Kind, path: &str, part: &str) -> bool {
    asked.iter().any(|one| one.kind == kind && one.path == path && one.body.to_string().contains(part))
}

/// How often the API was asked for the TFJobs that this field selector selects.
fn lists_by_name(asked: &[Asked], selects: impl Fn(&str) -> bool) -> usize {
    let is_list = |one: &&Asked| {
        one.kind == Kind::List && one.path == "tfjobs" && one.param("fieldSelector").is_some_and(&selects)
    };
    asked.iter().filter(is_list).count()
}

#[tokio::test(start_paused = true)]
async fn the_job_of_a_tfjob_that_was_deleted_while_no_master_ran_is_deleted_and_a_new_tfjob_gets_a_new_job() {
    let world = World::begin().await;
    for name in ["deleted", "again"] {
        world.apply(&tfjob(name, "earlier")).await;
    }
    let again = world.server.put("tfjobs", tfjob("again", ""));
    let uid = again["metadata"]["uid"].as_str().expect("no uid").to_owned();

    let world = world.follow();
    world.deletes(&["deleted", "again"]).await;
    let server = &world.server;
    server.until("a job is created again", |asked| has(asked, Kind::Create, "configmaps", &uid)).await;
    server
        .until("the new job is shown", |asked| has(asked, Kind::Patch, "tfjobs/again/status", "TFJobSuspended"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_job_stays_while_the_api_knows_its_tfjob_although_the_watch_has_not_reported_it() {
    let world = World::begin().await.follow();
    let server = &world.server;
    server
        .until("the watch is open", |asked| asked.iter().any(|one| one.kind == Kind::Watch && one.path == "tfjobs"))
        .await;
    let late = server.put_unreported("tfjobs", tfjob("late", ""));
    world.apply(&late).await;
    world.apply(&tfjob("orphan", "deleted")).await;
    world.deletes(&["orphan"]).await;
    server
        .until("the job is checked twice, or deleted", |asked| {
            let checks = lists_by_name(asked, |selector| selector == "metadata.name=late");
            checks >= 2 || has(asked, Kind::Delete, "configmaps/muster-late", "")
        })
        .await;
    assert!(server.object("configmaps", "muster-late").is_some(), "the job is deleted");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_late_does_not_delete_the_job_of_a_tfjob_that_was_created_meanwhile() {
    let world = World::begin().await.follow();
    let (server, name) = (&world.server, "again".parse().expect("a valid name"));
    server
        .until("the watch is open", |asked| asked.iter().any(|one| one.kind == Kind::Watch && one.path == "tfjobs"))
        .await;
    world.apply(&tfjob("again", "earlier")).await;
    // The check of the definition of TFJobs also lists.
    server.script_times(2, Kind::List, &Reply::Late(Duration::from_secs(20)));
    let lists = |asked: &[Asked]| lists_by_name(asked, |field| field == "metadata.name=again");
    server.until("the sweep asks for the earlier TFJob", |asked| lists(asked) == 1).await;
    world.jobs.requests.delete(&name, None).await.expect("not deleted");
    world.deletes(&["again"]).await;
    let later = server.put_unreported("tfjobs", tfjob("again", ""));
    world.apply(&later).await;
    let job = world.jobs.table.find(&name).expect("no job").view.borrow().uid.clone();
    server.until("a second sweep asks for the later TFJob", |asked| lists(asked) >= 3).await;
    assert_eq!(world.jobs.table.find(&name).map(|found| found.view.borrow().uid.clone()), Some(job));
    let deletions = |one: &&Asked| one.kind == Kind::Delete && one.path == "configmaps/muster-again";
    assert_eq!(server.journal().iter().filter(deletions).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_tfjob_is_being_deleted_is_deleted() {
    let world = World::begin().await.follow();
    let mut leaving = world.server.put("tfjobs", tfjob("leaving", ""));
    let server = &world.server;
    server.until("the TFJob has a job", |asked| has(asked, Kind::Create, "configmaps", "leaving")).await;
    // A finalizer of another program keeps the TFJob.
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    leaving["metadata"]["finalizers"] = json!(["example.com/keep"]);
    server.put("tfjobs", leaving);
    world.deletes(&["leaving"]).await;
}

#[tokio::test(start_paused = true)]
async fn many_deletions_of_tfjobs_cause_few_requests_for_lists_even_if_the_api_is_slow() {
    const MANY: usize = 60;
    let world = World::begin().await.follow();
    let names: Vec<String> = (0..MANY).map(|index| format!("job-{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in &names {
        world.server.put("tfjobs", tfjob(name, ""));
    }
    let is_shown = |asked: &[Asked], name: &str| has(asked, Kind::Patch, &format!("tfjobs/{name}/status"), "");
    world.server.until("every TFJob has a job", |asked| names.iter().all(|name| is_shown(asked, name))).await;

    world.server.script_times(100 * MANY, Kind::List, &Reply::Late(Duration::from_secs(10)));
    for name in &names {
        world.server.remove("tfjobs", name);
        // Virtual time passes only while the master waits for the API.
        sleep(Duration::from_secs(1)).await;
    }
    world.deletes(&names).await;
    let lists = lists_by_name(&world.server.journal(), |_| true);
    assert!((MANY..2 * MANY).contains(&lists), "{lists} lists for {MANY} TFJobs");
}
