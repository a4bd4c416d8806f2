//! Tests that a master ignores unreadable records in ConfigMaps, and that other jobs are not affected.

use std::sync::Arc;

use job::key::JobKey;
use master::backend::PodBackend;
use master::registry::{JobHandle, JobsError};
use master::store::kube::KubeStore;
use master::store::{JobRecord, JobStore, StoreError, Wish};
use protocol::agent::ExitOutcome;
use protocol::ids::JobName;
use protocol::view::{JobState, JobView};
use serde_json::{Value, json};
use testkit::conformance::store as conformance;
use testkit::damage::damaged;
use testkit::fake::{Arrival, FakeBackend};

use super::objects::failure;
use super::server::{ApiServer, Kind, Reply, gone};
use crate::captured_log;
use crate::service::harness::{Master, in_time, reach, until};

const MUTATIONS: u64 = 500;

/// A master with this boot id, these pods, and records in the simulated API server.
async fn over(boot_id: &str, backend: FakeBackend, server: &ApiServer) -> Master {
    Master::reading(boot_id, backend, Arc::new(KubeStore::new(&server.cluster()))).await
}

/// A master with records in the simulated API server and pods in memory.
async fn first(server: &ApiServer) -> Master {
    over("first", FakeBackend::new(Arrival::AtOnce), server).await
}

/// Submits a job, and waits until it runs.
async fn start(master: &Master, job: &str) -> JobHandle {
    let job = master.submit((*conformance::record(job).spec).clone()).await;
    reach(&job, JobState::Running).await;
    job
}

/// Lets all scripts of a job succeed.
fn end(master: &Master, job: &str) {
    master.backend.agents(&name(job)).values().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
}

fn config_map(name: &str, text: &str) -> Value {
    let labels = json!({
        "app.kubernetes.io/managed-by": "muster", "app.kubernetes.io/name": "muster-job",
        "app.kubernetes.io/component": "job", "muster/job": name,
    });
    json!({
        "kind": "ConfigMap", "apiVersion": "v1", "data": { "record": text },
        "metadata": { "name": format!("muster-{name}"), "namespace": super::server::NAMESPACE, "labels": labels },
    })
}

fn name(text: &str) -> JobName {
    text.parse().expect("not a job's name")
}

#[tokio::test]
async fn unreadable_records_are_logged_once_each_and_do_not_disturb_a_healthy_job() {
    captured_log::begin();
    let server = ApiServer::new();
    let store = KubeStore::new(&server.cluster());
    let mut unreadable = vec![];
    for seed in 0..MUTATIONS {
        let job = format!("bad-{seed:03}");
        // If the record is still readable, its job is cancelled and ends soon.
        let record = JobRecord { wish: Wish::Cancel, ..conformance::record(&job) };
        let mut map = config_map(&job, &String::from_utf8_lossy(&damaged(&record, seed)));
        match seed % 50 {
            0 => map["data"] = Value::Null,
            1 => map["data"] = json!({ "another": "key" }),
            2 => map["metadata"]["labels"]["muster/job"] = json!("Not A Name"),
            3 => map["metadata"]["labels"]["muster/job"] = json!("another"),
            _ => {}
        }
        server.put("configmaps", map);
        match store.get(&name(&job)).await {
            Ok(Some(_)) => {}
            Err(StoreError::Unreadable { job: key, .. }) if !key.uid.is_empty() => unreadable.push(job),
            Err(StoreError::OtherFormat { .. }) => {}
            other => panic!("with seed {seed}, the outcome is unexpected: {other:?}"),
        }
    }
    assert!((200..450).contains(&unreadable.len()), "{} of {MUTATIONS} records are unreadable", unreadable.len());

    let master = first(&server).await;
    let healthy = start(&master, "healthy").await;
    let lists = server.count(Kind::List);
    server.end_watches(Some(gone()));
    let lists_again = |asked: &[super::server::Asked]| asked.iter().filter(|a| a.kind == Kind::List).count() > lists;
    server.until("the records are listed again", lists_again).await;
    end(&master, "healthy");
    reach(&healthy, JobState::Succeeded).await;
    for job in &unreadable {
        assert!(master.backend.table(&name(job)).borrow().is_empty(), "{job} has pods");
        assert_eq!(
            captured_log::lines(&["ignored an unreadable record", &format!("config_map=\"muster-{job}\"")]).len(),
            1,
            "wrong number of log lines about {job}"
        );
    }
    assert_eq!(
        captured_log::lines(&["ignored an unreadable record", "config_map=\"muster-bad-"]).len(),
        unreadable.len()
    );
    assert_eq!(captured_log::lines(&["panicked", "job=bad-"]), Vec::<String>::new());
}

#[tokio::test]
async fn an_unreadable_record_blocks_its_name_until_it_is_deleted() {
    let server = ApiServer::new();
    server.put("configmaps", config_map("taken", "{"));
    let master = first(&server).await;
    let spec = (*conformance::record("taken").spec).clone();
    let refused = master.jobs.requests.submit(spec.clone()).await;
    assert!(matches!(&refused, Err(JobsError::Unreadable { job, .. }) if job.name == spec.name), "{refused:?}");
    let refused = master.jobs.requests.wish(&spec.name, Wish::Cancel).await;
    assert!(matches!(&refused, Err(JobsError::Unreadable { .. })), "{refused:?}");
    assert!(server.object("configmaps", "muster-taken").is_some());

    master.jobs.requests.wish(&spec.name, Wish::Delete).await.expect("cannot delete the job");
    let journal = server.journal();
    let deleted = journal.iter().rfind(|asked| asked.kind == Kind::Delete).expect("no delete");
    assert!(deleted.body["preconditions"]["resourceVersion"].is_string(), "{deleted:?}");
    start(&master, "taken").await;
}

#[tokio::test]
async fn a_config_map_with_the_label_of_another_job_is_not_deleted() {
    let server = ApiServer::new();
    let mut copy = config_map("copy", "{}");
    copy["metadata"]["labels"]["muster/job"] = json!("original");
    server.put("configmaps", copy);
    let master = first(&server).await;
    let refused = master.jobs.requests.wish(&name("copy"), Wish::Delete).await.expect_err("not refused").to_string();
    let removal = "remove the record with kubectl delete configmap muster-copy --namespace training";
    assert!(refused.contains("ConfigMap muster-copy is not named and labelled as a record"), "{refused}");
    assert!(refused.ends_with(removal), "the message does not end with the command: {refused}");
    assert!(server.object("configmaps", "muster-copy").is_some());
}

#[tokio::test]
async fn a_record_that_is_damaged_while_its_job_runs_is_rewritten() {
    let server = ApiServer::new();
    let master = first(&server).await;
    let job = start(&master, "digits").await;
    let whole = recorded(&server, "digits");
    let mut broken = server.object("configmaps", "muster-digits").expect("no ConfigMap");
    broken["data"]["record"] = json!("{\"uid\"");
    server.put("configmaps", broken);
    let is_mended = |asked: &[super::server::Asked]| asked.iter().any(|a| a.kind == Kind::Replace);
    server.until("the record is rewritten", is_mended).await;
    let anew = recorded(&server, "digits");
    assert_eq!((&anew["spec"], &anew["epoch"]), (&whole["spec"], &whole["epoch"]));
    end(&master, "digits");
    reach(&job, JobState::Succeeded).await;
    assert_eq!(recorded(&server, "digits")["ended"]["result"]["outcome"], "succeeded");
}

fn recorded(server: &ApiServer, job: &str) -> Value {
    let map = server.object("configmaps", &format!("muster-{job}")).expect("no ConfigMap");
    serde_json::from_str(map["data"]["record"].as_str().expect("not text")).expect("not a record")
}

fn refused() -> Reply {
    Reply::Instead(failure(422, "Invalid", "admission webhook \"policy\" denied the request"))
}

#[tokio::test]
async fn a_refused_write_of_a_result_is_shown_and_retried() {
    let server = ApiServer::new();
    let master = first(&server).await;
    let job = start(&master, "digits").await;
    server.script_times(2, Kind::Replace, &refused());
    let says = |view: &JobView| {
        view.replicas.iter().all(|replica| replica.reason.as_deref().is_some_and(|reason| reason.contains("webhook")))
    };
    let (_, ()) = tokio::join!(until(&job, says), async { end(&master, "digits") });
    reach(&job, JobState::Succeeded).await;
    assert_eq!(recorded(&server, "digits")["ended"]["result"]["outcome"], "succeeded");
}

#[tokio::test]
async fn a_takeover_is_retried_if_the_api_refuses_it() {
    let server = ApiServer::new();
    let first = self::first(&server).await;
    start(&first, "digits").await;
    server.script_times(2, Kind::Replace, &refused());
    let second = over("second", first.backend.clone(), &server).await;
    let job = second.job(&name("digits"));
    reach(&job, JobState::Running).await;
    assert_eq!(recorded(&server, "digits")["holder"], "second");
}

#[tokio::test]
async fn a_new_master_takes_a_job_over_with_one_write_and_reads_no_single_record() {
    let server = ApiServer::new();
    let first = self::first(&server).await;
    start(&first, "digits").await;
    let (reads, writes) = (server.count(Kind::Get), server.count(Kind::Replace));
    let second = over("second", first.backend.clone(), &server).await;
    let job = second.job(&name("digits"));
    reach(&job, JobState::Running).await;
    assert_eq!(recorded(&server, "digits")["holder"], "second");
    assert_eq!((server.count(Kind::Get), server.count(Kind::Replace)), (reads, writes + 1));
}

#[tokio::test]
async fn after_the_deletion_of_a_record_its_name_is_free_although_the_jobs_result_is_not_written_yet() {
    let server = ApiServer::new();
    let master = first(&server).await;
    let before = start(&master, "digits").await;
    server.script_times(3, Kind::Replace, &refused());
    let refusals = server.count(Kind::Replace);
    end(&master, "digits");
    server
        .until("the API refuses a write", |asked| asked.iter().filter(|a| a.kind == Kind::Replace).count() > refusals)
        .await;
    server.remove("configmaps", "muster-digits");
    let key = JobKey { name: name("digits"), uid: before.view.borrow().uid.clone() };
    master.backend.delete_all(&key).await.expect("cannot delete the pods");
    let job = start(&master, "digits").await;
    // When the driver of the first job ends, it drops the view's sender.
    let mut view = before.view.clone();
    in_time("the first driver ends", async { while view.changed().await.is_ok() {} }).await;
    end(&master, "digits");
    reach(&job, JobState::Succeeded).await;
}
