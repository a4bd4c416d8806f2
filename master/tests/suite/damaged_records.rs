//! Tests that a master ignores an unreadable record until a user deletes it, and that other jobs are not affected.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use job::key::JobKey;
use job::plan;
use launchers::tfjob::Place;
use master::agents::client::AgentClient;
use master::agents::token::AgentKey;
use master::backend::{PodBackend, PodSpec};
use master::driver::Context;
use master::http::{About, Guard, Server};
use master::registry::{Jobs, Submitted};
use master::store::sqlite::SqliteStore;
use master::store::{Ended, FORMAT, JobRecord, JobStore, NotRead, StoreError, StoreEvent, Wish};
use protocol::agent::ExitOutcome;
use protocol::error::{ErrorCode, Problem};
use protocol::ids::JobName;
use protocol::master::BackendKind;
use protocol::view::{JobResult, JobState, JobTimes, JobView};
use serde_json::{Value, json};
use testkit::conformance::store as conformance;
use testkit::damage::damaged;
use testkit::fake::{Arrival, FakeBackend, code_below};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::captured_log;

const DEADLINE: Duration = Duration::from_secs(60);
const MUTATIONS: u64 = 500;

/// A master with records in a SQLite file and pods in memory.
struct Master {
    jobs: Arc<Jobs>,
    backend: FakeBackend,
    url: String,
    _logs: tempfile::TempDir,
}

impl Master {
    async fn over(store: &SqliteStore, backend: FakeBackend) -> Self {
        let logs = tempfile::tempdir().expect("no folder");
        let context = Context {
            store: Arc::new(store.clone()),
            backend: Arc::new(backend.clone()),
            agents: AgentClient::new(),
            agent_key: AgentKey::random(),
            boot_id: "first".to_owned(),
            code: code_below(logs.path()),
        };
        let jobs = Jobs::new(Arc::new(context), logs.path().to_owned());
        tokio::spawn(Arc::clone(&jobs).run());
        timeout(DEADLINE, jobs.complete()).await.expect("the master did not read its jobs in time");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no free port");
        let url = format!("http://{}", listener.local_addr().expect("the listener has no address"));
        let about = About { backend: BackendKind::Process, place: Place::Processes, agent_binary: None };
        let server = Server::new(Arc::clone(&jobs), Guard::ThisMachine, about, CancellationToken::new());
        tokio::spawn(async move { server.serve(listener).await });
        Self { jobs, backend, url, _logs: logs }
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().expect("no client");
        let request = client.request(method.parse().expect("not a method"), format!("{}{path}", self.url)).json(body);
        let answer = timeout(DEADLINE, request.send()).await.expect("no answer came in time").expect("no answer");
        (answer.status().as_u16(), answer.text().await.expect("no body"))
    }

    /// Submits a job and lets it succeed.
    async fn succeed(&self, name: &str) {
        let spec = conformance::record(name).spec;
        let Ok(Submitted::Created(job)) = self.jobs.submit(spec.clone()).await else { panic!("{name} is not new") };
        for replica in plan::replicas(&spec) {
            let agent = self.backend.agent(&spec.name, replica).await;
            timeout(DEADLINE, agent.started()).await.expect("the run did not start in time");
            agent.exit(ExitOutcome::Code(0));
        }
        let mut view = job.view.clone();
        let ended = timeout(DEADLINE, view.wait_for(|view| view.state == JobState::Succeeded)).await;
        assert!(ended.is_ok(), "{:?}", job.view.borrow());
    }
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

    let master = Master::over(&store, FakeBackend::new(Arrival::AtOnce)).await;
    master.succeed("healthy").await;
    assert_eq!(master.jobs.list().len(), readable + 1);
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
    overwrite(&file, &key.name, b"{\"format\": 1, \"uid\": \"uid-of-taken\"}");
    let replayed = store.watch().await.expect("no watch").recv().await;
    assert_eq!(replayed, Some(StoreEvent::Replayed { all_readable: false }), "the unreadable record is not reported");
    let backend = FakeBackend::new(Arrival::AtOnce);
    for replica in plan::replicas(&record.spec) {
        backend.create(PodSpec::new(key.clone(), &record.spec, replica, String::new())).await.expect("no pod");
    }

    let master = Master::over(&store, backend).await;
    master.succeed("healthy").await;
    let taken = json!({"name": "taken", "strategy": "AllReduce"});
    let (status, body) = master.ask("POST", "/v1/jobs", &taken).await;
    let problem: Problem = serde_json::from_str(&body).expect("not a problem");
    assert_eq!((status, problem.code), (409, ErrorCode::JobExists));
    let sentence = "the name \"taken\" belongs to a record that cannot be read (missing field `spec` at line 1 \
        column 36): choose another name, or remove the record with client delete taken";
    assert_eq!(problem.detail, sentence);
    for (method, path, expected) in [
        ("GET", "/create?strategy=AllReduce&name=taken", 409),
        ("POST", "/v1/jobs/taken/cancel", 409),
        ("GET", "/v1/jobs/taken", 404),
        ("GET", "/v1/jobs", 200),
    ] {
        assert_eq!(master.ask(method, path, &Value::Null).await.0, expected, "{method} {path}");
    }
    assert_eq!(master.backend.table(&key.name).borrow().len(), 2, "pods of the unreadable record were deleted");

    assert_eq!(master.ask("DELETE", "/v1/jobs/taken", &Value::Null).await.0, 202);
    assert!(master.backend.table(&key.name).borrow().is_empty(), "the delete has left pods");
    assert_eq!(master.ask("DELETE", "/v1/jobs/taken", &Value::Null).await.0, 404);
    let (status, body) = master.ask("POST", "/v1/jobs", &taken).await;
    assert_eq!(status, 201, "{body}");
    assert_eq!(serde_json::from_str::<JobView>(&body).expect("not a view").name, key.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_another_format_is_not_changed_even_if_it_cannot_be_read() {
    for format in [FORMAT - 1, FORMAT + 1] {
        leaves_a_record_alone(format).await;
    }
}

async fn leaves_a_record_alone(format: u32) {
    let dir = tempfile::tempdir().expect("no folder");
    let (store, file) = open(dir.path());
    let stored = store.create(conformance::record("later")).await.expect("cannot create the record");
    let text = json!({ "format": format, "uid": stored.record.uid, "spec": "in another form" }).to_string();
    overwrite(&file, stored.name(), text.as_bytes());
    let master = Master::over(&store, FakeBackend::new(Arrival::AtOnce)).await;
    assert!(master.jobs.find(stored.name()).is_none(), "the master has begun a driver");
    for wish in [Wish::Cancel, Wish::Delete] {
        let refused = master.jobs.wish(stored.name(), wish).await.expect_err("a record of another format was changed");
        let formats = format!("in format {format}; this version supports format {FORMAT}");
        assert!(refused.to_string().ends_with(&formats), "{refused}");
    }
    let taken = json!({ "name": "later", "strategy": "AllReduce", "worker_num": 2 });
    assert_eq!(master.ask("POST", "/v1/jobs", &taken).await.0, 409, "the name of the record is reused");
    let after = file.query_row("SELECT record FROM jobs WHERE name = 'later'", [], |row| row.get::<_, String>(0));
    assert_eq!(after.expect("no record"), text, "the record has changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_stops_driving_a_job_whose_record_gets_another_format() {
    let dir = tempfile::tempdir().expect("no folder");
    let (store, file) = open(dir.path());
    let master = Master::over(&store, FakeBackend::new(Arrival::AtOnce)).await;
    let spec = conformance::record("handed-over").spec;
    let Ok(Submitted::Created(_)) = master.jobs.submit(spec.clone()).await else { panic!("the job was not created") };
    let replicas = plan::replicas(&spec);
    let agent = master.backend.agent(&spec.name, replicas[0]).await;
    timeout(DEADLINE, agent.started()).await.expect("the run did not start in time");
    let text = json!({ "format": FORMAT + 1 }).to_string();
    overwrite(&file, &spec.name, text.as_bytes());
    // When the driver records this failure, it finds the record with the other format.
    agent.exit(ExitOutcome::Code(1));
    let is_waiting = |view: &JobView| view.replicas.iter().any(|replica| replica.reason.is_some());
    let waits = async {
        // When a new driver replaces the job's driver, the new driver's views come through a new channel.
        while master.jobs.find(&spec.name).expect("no such job").view.wait_for(is_waiting).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, waits).await.expect("the view does not say in time why the job waits");
    let after = file.query_row("SELECT record FROM jobs WHERE name = 'handed-over'", [], |row| row.get::<_, String>(0));
    assert_eq!(after.expect("no record"), text, "the record has changed");
    assert_eq!(master.backend.table(&spec.name).borrow().len(), replicas.len(), "pods were deleted");
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
