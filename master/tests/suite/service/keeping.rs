//! Tests of what a master keeps of finished jobs.

use master::store::{Ended, JobRecord, JobStore, Suspension};
use protocol::ids::UnixMillis;
use protocol::origin::Origin;
use protocol::view::{JobResult, JobTimes};
use serde_json::json;
use testkit::conformance::store as conformance;
use testkit::fake::{FakeStore, Written};

use super::harness::{Master, in_time};

/// The record of a job that the master `holder` has ended at this time.
fn ended(name: &str, at: u64, holder: &str) -> JobRecord {
    let times = JobTimes { ended: Some(UnixMillis(at)), ..JobTimes::default() };
    let ended =
        Ended { result: JobResult::Succeeded, times, generation: None, roster: vec![], replicas: vec![].into() };
    JobRecord { holder: holder.to_owned(), ended: Some(ended), ..conformance::record(name) }
}

/// The record of a job that has not ended and has no pods.
fn suspended(name: &str) -> JobRecord {
    let suspension = Suspension { since: Some(UnixMillis(1)), ..Suspension::default() };
    JobRecord { suspension, ..conformance::record(name) }
}

async fn stored(records: Vec<JobRecord>) -> FakeStore {
    let store = FakeStore::default();
    for record in records {
        store.create(record).await.expect("cannot create the record");
    }
    store
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("no folder")
}

/// Waits until the store has exactly the records of these jobs.
async fn has_only(store: &FakeStore, names: &[&str]) {
    let mut listed: Vec<String> = vec![];
    let mut watch = store.watch().await.expect("cannot watch the records");
    let only = async {
        loop {
            let records = store.list().await.expect("cannot list the records");
            listed = records.iter().map(|stored| stored.name().to_string()).collect();
            if listed == names {
                return;
            }
            watch.recv().await.expect("the store has ended");
        }
    };
    in_time(&format!("only {names:?} are on record"), only).await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_finished_jobs_are_deleted_with_their_output_and_unfinished_jobs_stay() {
    let logs = folder();
    let output = logs.path().join("uid-of-b").join("worker-0.log");
    std::fs::create_dir_all(output.parent().expect("no folder")).expect("no folder");
    std::fs::write(&output, "").expect("no file");
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"];
    let finished = names.iter().zip(1..).map(|(name, at)| ended(name, if *name == "a" { 99 } else { at }, "first"));
    let store = stored(finished.chain([suspended("z")]).collect()).await;
    let _master = Master::keeping(2, "first", store.clone(), logs);
    has_only(&store, &["a", "m", "z"]).await;
    assert!(!output.exists(), "the output of a deleted job was kept");
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_later_master_and_of_tfjobs_in_the_cluster_are_neither_counted_nor_deleted() {
    let mut of_object = ended("object", 1, "first");
    let origin = json!({ "api_version": "kubeflow.org/v1", "spec": {}, "object_uid": "uid-of-object" });
    of_object.spec.origin = Some(Origin::TfJob(serde_json::from_value(origin).expect("not an origin")));
    let records = vec![ended("later", 2, "second"), of_object, ended("one", 3, "first"), ended("two", 4, "first")];
    let store = stored(records).await;
    let _master = Master::keeping(1, "first", store.clone(), folder());
    has_only(&store, &["later", "object", "two"]).await;
}

#[tokio::test(start_paused = true)]
async fn two_masters_delete_each_old_job_once() {
    let records = ["a", "b", "c", "d"].iter().zip(1..).map(|(name, at)| ended(name, at, "first")).collect();
    let store = stored(records).await;
    let first = Master::keeping(3, "first", store.clone(), folder());
    let second = Master::keeping(1, "second", store.clone(), folder());
    has_only(&store, &["d"]).await;
    for master in [&first, &second] {
        master.forgotten(&"c".parse().expect("not a name")).await;
    }
    let deleted = |change: &Written| matches!(change, Written::Nothing(_));
    assert_eq!(store.history().await.iter().filter(|(_, change)| deleted(change)).count(), 3);
}
