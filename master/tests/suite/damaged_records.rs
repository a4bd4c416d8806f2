//! Tests that a master ignores an unreadable record until a user deletes it, and that other jobs are not affected.

use std::path::Path;
use std::sync::Arc;

use job::key::JobKey;
use job::plan;
use master::backend::{PodBackend, PodSpec};
use master::store::sqlite::SqliteStore;
use master::store::{Ended, FORMAT, FORMAT_OF_SEVERAL, JobRecord, JobStore, NotRead, StoreError, StoreEvent, Wish};
use protocol::agent::ExitOutcome;
use protocol::ids::JobName;
use protocol::view::{JobResult, JobTimes, JobView};
use serde_json::{Value, json};
use testkit::conformance::store as conformance;
use testkit::damage::damaged;
use testkit::fake::{Arrival, FakeBackend};

use crate::captured_log;
use crate::service::harness::{Answer, Master, client, in_time};

const MUTATIONS: u64 = 500;

/// A master that serves HTTP, with records in a SQLite file and pods in memory.
async fn over(store: &SqliteStore, backend: FakeBackend) -> Master {
    Master::reading("first", backend, Arc::new(store.clone())).await.serve(None).await
}

/// An undamaged record of a job. `has_ended` tells whether the job has ended.
fn whole(name: &str, has_ended: bool) -> JobRecord {
    let end = |record: &JobRecord| Ended {
        roster: vec![],
        result: JobResult::Cancelled,
        times: JobTimes { accepted: Some(record.accepted_at), ..JobTimes::default() },
        generation: Some("1.1".parse().expect("not a generation")),
        replicas: master::driver::initial_view(record).replicas,
    };
    let record = conformance::record(name);
    JobRecord { ended: has_ended.then(|| end(&record)), ..record }
}

/// Replaces the stored text of a record by `text`.
fn overwrite(file: &rusqlite::Connection, name: &JobName, text: &[u8]) {
    let update = "UPDATE jobs SET version = version + 1, record = CAST(?2 AS TEXT) WHERE name = ?1";
    assert_eq!(file.execute(update, rusqlite::params![name.as_str(), text]).expect("cannot write the record"), 1);
}

fn open(dir: &Path) -> (SqliteStore, rusqlite::Connection) {
    let path = dir.join("jobs.sqlite");
    let store = SqliteStore::open(&path).expect("cannot open the store");
    (store, rusqlite::Connection::open(&path).expect("no second connection"))
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_records_are_logged_once_each_and_do_not_disturb_a_healthy_job() {
    captured_log::begin();
    let dir = tempfile::tempdir().expect("no folder");
    let (store, file) = open(dir.path());
    let (mut readable, mut unreadable) = (0, vec![]);
    for seed in 0..MUTATIONS {
        let record = whole(&format!("bad-{seed:03}"), seed % 5 != 0);
        let name = record.spec.name.clone();
        store.create(record.clone()).await.expect("cannot create the record");
        overwrite(&file, &name, &damaged(&record, seed));
        match store.get(&name).await {
            Ok(Some(_)) => readable += 1,
            Err(StoreError::Unreadable { job, .. }) if job.name == name => unreadable.push(name),
            Err(StoreError::OtherFormat { .. }) => {}
            other => panic!("with seed {seed}, the outcome is unexpected: {other:?}"),
        }
    }
    assert!(
        readable > 50 && unreadable.len() > 200,
        "too few of each kind: {readable} readable and {} unreadable records",
        unreadable.len()
    );

    let master = over(&store, FakeBackend::new(Arrival::AtOnce)).await;
    master.succeed(&conformance::record("healthy").spec).await;
    assert_eq!(master.jobs.table.list().len(), readable + 1);
    for name in &unreadable {
        assert_eq!(captured_log::lines(&[&format!("job \\\"{name}\\\" cannot be read")]).len(), 1, "{name}");
        assert!(master.backend.table(name).borrow().is_empty(), "{name} has pods");
    }
    assert_eq!(captured_log::lines(&["panicked", "job=bad-"]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_record_blocks_its_name_until_it_is_deleted() {
    let dir = tempfile::tempdir().expect("no folder");
    let (store, file) = open(dir.path());
    let record = conformance::record("taken");
    let key = JobKey { name: record.spec.name.clone(), uid: record.uid.clone() };
    store.create(record.clone()).await.expect("cannot create the record");
    overwrite(&file, &key.name, b"{\"format\": 2, \"uid\": \"uid-of-taken\"}");
    let replayed = store.watch().await.expect("no watch").recv().await;
    assert_eq!(replayed, Some(StoreEvent::Replayed { all_readable: false }), "the unreadable record is not reported");
    let backend = FakeBackend::new(Arrival::AtOnce);
    for replica in plan::replicas(&record.spec) {
        backend.create(PodSpec::new(key.clone(), &record.spec, replica, String::new())).await.expect("no pod");
    }

    let master = over(&store, backend).await;
    master.succeed(&conformance::record("healthy").spec).await;
    let taken = json!({"name": "taken", "strategy": "AllReduce"});
    let refused = master.post("/v1/jobs", &taken).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "job_exists"));
    let sentence = "the name \"taken\" belongs to a record that cannot be read (missing field `spec` at line 1 \
        column 36): choose another name, or remove the record with client delete taken";
    assert_eq!(refused.json()["detail"], sentence);
    let cancel = Answer::of(client().post(master.url("/v1/jobs/taken/cancel"))).await;
    assert_eq!(cancel.status, 409, "{cancel:?}");
    for (path, expected) in [("/create?strategy=AllReduce&name=taken", 409), ("/v1/jobs/taken", 404), ("/v1/jobs", 200)]
    {
        assert_eq!(master.get(path).await.status, expected, "{path}");
    }
    assert_eq!(master.backend.table(&key.name).borrow().len(), 2, "pods of the unreadable record were deleted");

    assert_eq!(master.delete("/v1/jobs/taken").await.status, 202);
    assert!(master.backend.table(&key.name).borrow().is_empty(), "the delete has left pods");
    assert_eq!(master.delete("/v1/jobs/taken").await.status, 404);
    let created = master.post("/v1/jobs", &taken).await;
    assert_eq!((created.status, &created.json()["name"]), (201, &json!("taken")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_another_format_is_not_changed_even_if_it_cannot_be_read() {
    for format in [FORMAT - 1, FORMAT_OF_SEVERAL + 1] {
        leaves_a_record_alone(format).await;
    }
}

async fn leaves_a_record_alone(format: u32) {
    let dir = tempfile::tempdir().expect("no folder");
    let (store, file) = open(dir.path());
    let stored = store.create(conformance::record("later")).await.expect("cannot create the record");
    let text = json!({ "format": format, "uid": stored.record.uid, "spec": "in another form" }).to_string();
    overwrite(&file, stored.name(), text.as_bytes());
    let master = over(&store, FakeBackend::new(Arrival::AtOnce)).await;
    assert!(master.jobs.table.find(stored.name()).is_none(), "the master has begun a driver");
    for wish in [Wish::Cancel, Wish::Delete] {
        let refused =
            master.jobs.requests.wish(stored.name(), wish).await.expect_err("a record of another format was changed");
        let formats = format!("in format {format}; this version supports formats {FORMAT} and {FORMAT_OF_SEVERAL}");
        assert!(refused.to_string().ends_with(&formats), "{refused}");
    }
    let taken = json!({ "name": "later", "strategy": "AllReduce", "worker_num": 2 });
    assert_eq!(master.post("/v1/jobs", &taken).await.status, 409, "the name of the record is reused");
    let after = file.query_one("SELECT record FROM jobs WHERE name = 'later'", [], |row| row.get::<_, String>(0));
    assert_eq!(after.expect("no record"), text, "the record has changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_stops_driving_a_job_whose_record_gets_another_format() {
    let dir = tempfile::tempdir().expect("no folder");
    let (store, file) = open(dir.path());
    let master = over(&store, FakeBackend::new(Arrival::AtOnce)).await;
    let spec = (*conformance::record("handed-over").spec).clone();
    master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    let text = json!({ "format": FORMAT_OF_SEVERAL + 1 }).to_string();
    overwrite(&file, &spec.name, text.as_bytes());
    // When the driver records this failure, it finds the record with the other format.
    agents[0].exit(ExitOutcome::Code(1));
    let is_waiting = |view: &JobView| view.replicas.iter().any(|replica| replica.reason.is_some());
    let waits = async {
        // When a new driver replaces the job's driver, the new driver's views come through a new channel.
        while master.job(&spec.name).view.wait_for(is_waiting).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    in_time("the view says why the job waits", waits).await;
    let after = file.query_one("SELECT record FROM jobs WHERE name = 'handed-over'", [], |row| row.get::<_, String>(0));
    assert_eq!(after.expect("no record"), text, "the record has changed");
    assert_eq!(master.backend.table(&spec.name).borrow().len(), agents.len(), "pods were deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_record_has_vanished_without_a_deletion_is_no_longer_shown() {
    let dir = tempfile::tempdir().expect("no folder");
    let (store, file) = open(dir.path());
    let master = over(&store, FakeBackend::new(Arrival::AtOnce)).await;
    let spec = (*conformance::record("vanished").spec).clone();
    master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    assert_eq!(file.execute("DELETE FROM jobs", []).expect("cannot delete the record"), 1);
    // The driver notices it when it writes the result.
    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    master.forgotten(&spec.name).await;
    assert!(master.backend.table(&spec.name).borrow().is_empty(), "the job has left pods");
}

#[test]
fn a_record_with_unknown_fields_is_read() {
    let record = whole("newer", true);
    let mut value = serde_json::to_value(&record).expect("not JSON");
    for place in ["", "/spec", "/spec/pod", "/ended", "/ended/times", "/ended/replicas/0"] {
        if let Some(object) = value.pointer_mut(place).and_then(Value::as_object_mut) {
            object.insert("from_the_future".to_owned(), json!([{"a": 1}]));
        }
    }
    assert_eq!(JobRecord::read(&record.spec.name, value.to_string().as_bytes()), Ok(record));
}

#[test]
fn the_seeds_of_the_record_fuzzer_are_valid_records() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/record");
    let name: JobName = "digits".parse().expect("not a job's name");
    for seed in std::fs::read_dir(seeds).expect("no folder").flatten() {
        let read = JobRecord::read(&name, &std::fs::read(seed.path()).expect("no file"));
        assert!(read.is_ok(), "{}: {read:?}", seed.path().display());
    }
}

#[test]
fn a_record_with_an_invalid_uid_an_exhausted_epoch_or_another_name_is_refused() {
    let record = whole("digits", true);
    let name = record.spec.name.clone();
    let read = |record: &JobRecord| JobRecord::read(&name, &serde_json::to_vec(record).expect("not JSON"));
    assert_eq!(read(&record), Ok(record.clone()));
    for uid in ["", "..", "../../etc", "/etc", "a b", &"x".repeat(65)] {
        let refused = read(&JobRecord { uid: uid.to_owned(), ..record.clone() }).expect_err("a bad uid was read");
        assert!(matches!(&refused, NotRead::Invalid(reason) if reason.ends_with("is not a uid")), "{refused:?}");
    }
    let refused = read(&JobRecord { epoch: u32::MAX, ..record.clone() }).expect_err("a bad epoch was read");
    assert_eq!(refused, NotRead::Invalid("its epoch cannot be raised any more".to_owned()));
    let refused = read(&whole("letters", true)).expect_err("the record of another job was read");
    assert_eq!(refused, NotRead::Invalid("it is the record of a job named \"letters\"".to_owned()));
}
