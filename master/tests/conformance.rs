//! Every store passes the stores' suite, and every back end the back ends'.

use std::path::{Path, PathBuf};

use master::backend::fake::{Arrival, FakeBackend};
use master::backend::process::ProcessBackend;
use master::backend::{self, PodBackend};
use master::store::fake::FakeStore;
use master::store::sqlite::SqliteStore;
use master::store::{self, JobRecord, JobStore, StoreError, StoreEvent};

/// The agent beside the test programs.
fn agent_binary() -> PathBuf {
    let program = std::env::current_exe().expect("a test is a program");
    let agent = program.parent().and_then(Path::parent).expect("it lies in target/debug/deps").join("agent");
    assert!(agent.is_file(), "there is no agent at {}: run `cargo build --workspace` first", agent.display());
    agent
}

fn is_unavailable<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Unavailable(_)))
}

#[tokio::test]
async fn the_fake_store_conforms() {
    store::conformance::check(&FakeStore::default()).await;
}

#[tokio::test]
async fn the_sqlite_store_conforms() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(&dir.path().join("jobs.sqlite")).expect("open");
    store::conformance::check(&store).await;
}

#[tokio::test]
async fn the_sqlite_store_keeps_records_and_versions_when_it_is_opened_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("jobs.sqlite");
    let first = SqliteStore::open(&path).expect("open");
    let created = first.create(store::conformance::record("kept")).await.expect("create");
    let raised = JobRecord { epoch: 2, ..created.record };
    let updated = first.update(raised.clone(), &created.version).await.expect("update");
    drop(first);

    let second = SqliteStore::open(&path).expect("open again");
    assert_eq!(second.list().await.expect("list"), [updated]);
    let late = second.update(raised, &created.version).await;
    assert!(matches!(late, Err(StoreError::Conflict(_))), "{late:?}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_unavailable() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("jobs.sqlite");
    std::fs::write(&path, "this is no database, whatever its name says\n".repeat(100)).expect("write");
    let opened = SqliteStore::open(&path);
    assert!(is_unavailable(&opened), "{opened:?}");
}

#[tokio::test]
async fn a_damaged_record_is_unreadable_and_does_not_hide_the_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("jobs.sqlite");
    let store = SqliteStore::open(&path).expect("open");
    let record = store::conformance::record("damaged");
    let name = record.spec.name.clone();
    store.create(record).await.expect("create");
    let file = rusqlite::Connection::open(&path).expect("open beside");
    file.execute("UPDATE jobs SET record = substr(record, 1, 40)", []).expect("damage");

    store.create(store::conformance::record("whole")).await.expect("create");

    let got = store.get(&name).await;
    assert!(matches!(&got, Err(StoreError::Unreadable { job, .. }) if job.name.as_str() == "damaged"), "{got:?}");
    let listed = store.list().await.expect("what can be read");
    assert_eq!(listed.iter().map(|stored| stored.name().as_str()).collect::<Vec<_>>(), ["whole"]);
    let first = store.watch().await.expect("what can be read").recv().await;
    assert!(matches!(&first, Some(StoreEvent::Changed(stored)) if stored.name().as_str() == "whole"), "{first:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_back_end_conforms() {
    let spec = store::conformance::record("pods").spec;
    backend::conformance::check(&FakeBackend::new(Arrival::AtOnce), &spec, "uid").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_back_end_conforms() {
    let (work, state) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    std::fs::write(work.path().join("exec.py"), "print(\"hello\")\n").expect("write");
    let pods = ProcessBackend::new(agent_binary(), work.path().to_owned(), vec![], state.path()).expect("no pods yet");
    let spec = store::conformance::record("pods").spec;
    backend::conformance::check(&pods, &spec, "uid").await;
    pods.shutdown().await;
    let left: Vec<_> = std::fs::read_dir(state.path().join("pods")).expect("the pods' folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_end_of_very_many_replicas_is_short_enough_for_every_store() {
    use master::store::Ended;
    use protocol::view::{JobResult, JobTimes, ReplicaState, ReplicaView};
    let replica = |index: u32| ReplicaView {
        replica: format!("worker-{index}").parse().expect("a replica"),
        state: ReplicaState::Lost,
        pod: format!("a-job-of-a-long-name-worker-{index}"),
        address: Some("10.0.0.1:1234".to_owned()),
        reason: Some("ErrImagePull: ".repeat(30)),
        pid: None,
        started_at: None,
        exit: None,
    };
    let ended = |count: u32| Ended {
        result: JobResult::Cancelled,
        times: JobTimes::default(),
        generation: None,
        replicas: (0..count).map(replica).collect(),
    };
    assert_eq!(ended(100).bounded(), ended(100), "few are kept as they are");
    for count in [1000, 5457] {
        let bounded = ended(count).bounded();
        assert!(serde_json::to_string(&bounded).expect("JSON").len() <= 256 * 1024, "{count}");
        assert_eq!(bounded.replicas.is_empty(), count > 1000, "of a thousand it is kept how each ended");
    }
}
