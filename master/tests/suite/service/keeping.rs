//! Tests of what a master keeps of finished jobs: the newest jobs with their output, but not their code.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use master::code::UNUSED_TIME;
use master::host::clock::wall_clock;
use master::store::{Ended, JobRecord, JobStore, Suspension};
use protocol::ids::UnixMillis;
use protocol::origin::Origin;
use protocol::view::{JobResult, JobState, JobTimes};
use serde_json::json;
use testkit::conformance::store as conformance;
use testkit::fake::{FakeStore, Written, code_below};

use super::delivering::keep_files;
use super::harness::{Master, in_time, reach, worker};
use crate::code::{Code, send};

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
    Arc::make_mut(&mut of_object.spec).origin =
        Some(Origin::TfJob(serde_json::from_value(origin).expect("not an origin")));
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

/// Sets the time of every file below a folder, so that the files look unused for long.
fn age(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("no folder").flatten() {
        if entry.path().is_dir() {
            age(&entry.path());
        } else {
            let file = File::options().append(true).open(entry.path()).expect("cannot open the file");
            file.set_modified(SystemTime::now() - 2 * UNUSED_TIME).expect("cannot set the time");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn if_code_needs_much_room_that_of_a_finished_job_is_removed_and_both_codes_of_an_unfinished_job_stay() {
    let logs = folder();
    let code = code_below(logs.path());
    let [first, newest] = ["2", "3"].map(|module| keep_files(&code, ["print('hello')", module]));
    let large = Code::new(&[("train.py", &vec![b' '; 9 << 20])]);
    send(&code, &large);
    let over = large.id();
    age(&logs.path().join("code"));
    let mut finished = ended("over", 1, "first");
    (Arc::make_mut(&mut finished.spec).code, finished.code) = (Some(over), Some(over));
    let mut unfinished = suspended("suspended");
    (Arc::make_mut(&mut unfinished.spec).code, unfinished.code) = (Some(first), Some(newest));
    let store = stored(vec![finished, unfinished]).await;
    let master = Master::keeping(1, "first", store, logs);
    let removed = async {
        while master.jobs.code().manifest(over).is_some() {
            tokio::task::yield_now().await;
        }
    };
    in_time("the code of the finished job is removed", removed).await;
    assert!([first, newest].iter().all(|id| master.jobs.code().manifest(*id).is_some()), "used code was removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_does_not_open_the_output_of_a_finished_job_before_somebody_reads_it() {
    let logs = folder();
    let before = master::logs::JobLogs::new(logs.path().join("uid-of-over"), &[worker(0)]);
    let log = before.of(worker(0)).expect("no log");
    log.append(0, "the output\n".into(), wall_clock()).await.expect("cannot write the output");
    before.complete().await;
    let store = stored(vec![ended("over", 1, "first")]).await;
    let master = Master::keeping(1, "second", store, logs);
    in_time("the master has read the records", master.jobs.complete()).await;
    let job = master.jobs.table.find(&"over".parse().expect("not a name")).expect("no job");
    reach(&job, JobState::Succeeded).await;
    let log = job.kept.logs.of(worker(0)).expect("no log");
    assert_eq!(log.progress().end, 0, "the master has opened the file");
    assert_eq!(log.read(0).await.expect("cannot read the output").bytes, b"the output\n");
}
