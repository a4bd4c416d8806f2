//! A record that cannot be read is set aside: it costs its own job a hand, and no other job anything.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use master::agent_client::AgentClient;
use master::agent_token::AgentKey;
use master::backend::{PodBackend, PodSpec};
use master::driver::Context;
use master::http::{About, Guard, Server};
use master::job::key::JobKey;
use master::job::plan;
use master::registry::{Jobs, Submitted};
use master::store::sqlite::SqliteStore;
use master::store::{Ended, JobRecord, JobStore, StoreError};
use protocol::agent::ExitOutcome;
use protocol::error::{ErrorCode, Problem};
use protocol::ids::JobName;
use protocol::view::{BackendKind, JobResult, JobState, JobTimes, JobView};
use serde_json::{Value, json};
use testkit::conformance::store as conformance;
use testkit::damage::damaged;
use testkit::fake::{Arrival, FakeBackend};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(60);
const MUTATIONS: u64 = 500;

/// What this process has logged.
fn log() -> &'static Mutex<Vec<u8>> {
    static LOG: OnceLock<&Mutex<Vec<u8>>> = OnceLock::new();
    struct Writer(&'static Mutex<Vec<u8>>);
    impl Write for Writer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no writer panics").write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    LOG.get_or_init(|| {
        let kept: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || Writer(kept)).init();
        kept
    })
}

/// The lines of the log that hold this text.
fn logged(text: &str) -> Vec<String> {
    let log = String::from_utf8(log().lock().expect("no writer panics").clone()).expect("a log is text");
    log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

/// A master over the records in a file, with pods in memory.
struct Master {
    jobs: Arc<Jobs>,
    backend: FakeBackend,
    url: String,
    _logs: tempfile::TempDir,
}

impl Master {
    async fn over(store: &SqliteStore, backend: FakeBackend) -> Self {
        let context = Context {
            store: Arc::new(store.clone()),
            backend: Arc::new(backend.clone()),
            agents: AgentClient::new(),
            agent_key: AgentKey::random(),
            boot_id: "first".to_owned(),
        };
        let logs = tempfile::tempdir().expect("a folder");
        let jobs = Jobs::new(Arc::new(context), logs.path().to_owned());
        tokio::spawn(Arc::clone(&jobs).run());
        timeout(DEADLINE, jobs.complete()).await.expect("it knows its jobs in time");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it was bound"));
        let about = About { backend: BackendKind::Process, agent_binary: None };
        let server = Server::new(Arc::clone(&jobs), Guard::ThisMachine, about, CancellationToken::new());
        tokio::spawn(async move { server.serve(listener).await });
        Self { jobs, backend, url, _logs: logs }
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let request = client.request(method.parse().expect("a method"), format!("{}{path}", self.url)).json(body);
        let answer = timeout(DEADLINE, request.send()).await.expect("in time").expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    }

    /// Runs a job to its success.
    async fn succeed(&self, name: &str) {
        let spec = conformance::record(name).spec;
        let Ok(Submitted::Created(job)) = self.jobs.submit(spec.clone()).await else { panic!("{name} is new") };
        for replica in plan::replicas(&spec) {
            let agent = self.backend.agent(&spec.name, replica).await;
            timeout(DEADLINE, agent.started()).await.expect("it starts in time");
            agent.exit(ExitOutcome::Code(0));
        }
        let mut view = job.view.clone();
        let ended = timeout(DEADLINE, view.wait_for(|view| view.state == JobState::Succeeded)).await;
        assert!(ended.is_ok(), "{:?}", job.view.borrow());
    }
}

/// The record of a job that has run, or, for some, of one that is to run.
fn whole(name: &str, has_ended: bool) -> JobRecord {
    let end = |record: &JobRecord| Ended {
        result: JobResult::Cancelled,
        times: JobTimes { accepted: Some(record.accepted_at), ..JobTimes::default() },
        generation: Some("1.1".parse().expect("a generation")),
        replicas: master::driver::initial_view(record).replicas,
    };
    let record = conformance::record(name);
    JobRecord { ended: has_ended.then(|| end(&record)), ..record }
}

/// Puts a text in the place of a record, whatever it is.
fn overwrite(file: &rusqlite::Connection, name: &JobName, text: &[u8]) {
    let update = "UPDATE jobs SET record = CAST(?2 AS TEXT) WHERE name = ?1";
    assert_eq!(file.execute(update, rusqlite::params![name.as_str(), text]).expect("it is written"), 1);
}

fn open(dir: &Path) -> (SqliteStore, rusqlite::Connection) {
    let path = dir.join("jobs.sqlite");
    let store = SqliteStore::open(&path).expect("open");
    (store, rusqlite::Connection::open(&path).expect("open beside"))
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_records_are_set_aside_once_each_and_a_healthy_job_runs_to_its_end() {
    log();
    let dir = tempfile::tempdir().expect("a folder");
    let (store, file) = open(dir.path());
    let (mut readable, mut unreadable) = (0, vec![]);
    for seed in 0..MUTATIONS {
        let record = whole(&format!("bad-{seed:03}"), seed % 5 != 0);
        let name = record.spec.name.clone();
        store.create(record.clone()).await.expect("create");
        overwrite(&file, &name, &damaged(&record, seed));
        match store.get(&name).await {
            Ok(Some(_)) => readable += 1,
            Err(StoreError::Unreadable { job, .. }) if job.name == name => unreadable.push(name),
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(readable > 50 && unreadable.len() > 200, "{readable} and {} of each kind", unreadable.len());

    let master = Master::over(&store, FakeBackend::new(Arrival::AtOnce)).await;
    master.succeed("healthy").await;
    assert_eq!(master.jobs.list().len(), readable + 1);
    for name in &unreadable {
        assert_eq!(logged(&format!("job \\\"{name}\\\" cannot be read")).len(), 1, "{name} is told of once");
        assert!(master.backend.table(name).borrow().is_empty(), "{name} has no pods");
    }
    assert_eq!(logged("driver broke"), Vec::<String>::new());
    assert_eq!(logged("panicked"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_keeps_its_name_until_it_is_deleted() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, file) = open(dir.path());
    let record = conformance::record("taken");
    let key = JobKey { name: record.spec.name.clone(), uid: record.uid.clone() };
    store.create(record.clone()).await.expect("create");
    overwrite(&file, &key.name, b"{\"uid\": \"uid-of-taken\"}");
    let backend = FakeBackend::new(Arrival::AtOnce);
    for replica in plan::replicas(&record.spec) {
        backend.create(PodSpec::new(key.clone(), &record.spec, replica, String::new())).await.expect("a pod");
    }

    let master = Master::over(&store, backend).await;
    master.succeed("healthy").await;
    let taken = json!({"name": "taken", "strategy": "AllReduce"});
    let (status, body) = master.ask("POST", "/v1/jobs", &taken).await;
    let problem: Problem = serde_json::from_str(&body).expect("a problem");
    assert_eq!((status, problem.code), (409, ErrorCode::JobExists));
    let sentence = "the record of a job named \"taken\" is in the way and cannot be read (missing field `spec` at line 1 \
        column 23): choose another name, or remove it by client delete taken";
    assert_eq!(problem.detail, sentence);
    for (method, path, expected) in [
        ("GET", "/create?strategy=AllReduce&name=taken", 409),
        ("POST", "/v1/jobs/taken/cancel", 409),
        ("GET", "/v1/jobs/taken", 404),
        ("GET", "/v1/jobs", 200),
    ] {
        assert_eq!(master.ask(method, path, &Value::Null).await.0, expected, "{method} {path}");
    }
    assert_eq!(master.backend.table(&key.name).borrow().len(), 2, "its pods are left alone");

    assert_eq!(master.ask("DELETE", "/v1/jobs/taken", &Value::Null).await.0, 202);
    assert!(master.backend.table(&key.name).borrow().is_empty(), "its pods go with it");
    assert_eq!(master.ask("DELETE", "/v1/jobs/taken", &Value::Null).await.0, 404);
    let (status, body) = master.ask("POST", "/v1/jobs", &taken).await;
    assert_eq!(status, 201, "{body}");
    assert_eq!(serde_json::from_str::<JobView>(&body).expect("a view").name, key.name);
}

#[test]
fn a_record_of_a_newer_master_is_read() {
    let record = whole("newer", true);
    let mut value = serde_json::to_value(&record).expect("JSON");
    for place in ["", "/spec", "/spec/pod", "/ended", "/ended/times", "/ended/replicas/0"] {
        if let Some(object) = value.pointer_mut(place).and_then(Value::as_object_mut) {
            object.insert("from_the_future".to_owned(), json!([{"a": 1}]));
        }
    }
    assert_eq!(JobRecord::read(&record.spec.name, value.to_string().as_bytes()), Ok(record));
}

#[test]
fn what_the_fuzzer_of_records_begins_with_are_records() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/record");
    let name: JobName = "digits".parse().expect("a job's name");
    for seed in std::fs::read_dir(seeds).expect("a folder").flatten() {
        let read = JobRecord::read(&name, &std::fs::read(seed.path()).expect("a file"));
        assert!(read.is_ok(), "{}: {read:?}", seed.path().display());
    }
}

#[test]
fn what_would_lead_a_master_astray_is_no_record() {
    let record = whole("digits", true);
    let name = record.spec.name.clone();
    let read = |record: &JobRecord| JobRecord::read(&name, &serde_json::to_vec(record).expect("JSON"));
    assert_eq!(read(&record), Ok(record.clone()));
    for uid in ["", "..", "../../etc", "/etc", "a b", &"x".repeat(65)] {
        let refused = read(&JobRecord { uid: uid.to_owned(), ..record.clone() }).expect_err("no uid");
        assert!(refused.ends_with("is not a uid"), "{refused}");
    }
    let refused = read(&JobRecord { epoch: u32::MAX, ..record.clone() }).expect_err("no epoch");
    assert_eq!(refused, "its epoch cannot be raised any more");
    let refused = read(&whole("letters", true)).expect_err("another's");
    assert_eq!(refused, "it is the record of a job named \"letters\"");
}
