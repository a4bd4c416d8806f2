//! A master in this process: registry, drivers and HTTP, with pods and records in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use launchers::kubeflow::ReplicaHost;
use master::agents::client::AgentClient;
use master::agents::token::AgentKey;
use master::code::CodeStore;
use master::driver::Context;
use master::http::{AboutMaster, Guard, Server};
use master::logs::{Archive, BUDGET};
use master::registry::{JobHandle, Jobs, KEPT_FINISHED, Submitted};
use master::store::{JobStore, Wish};
use master::tally::Tally;
use protocol::agent::ExitOutcome;
use protocol::ids::{JobName, ReplicaId};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::master::BackendKind;
use protocol::patch::JobPatch;
use protocol::run_policy::RunPolicy;
use protocol::view::{JobState, JobView};
use serde_json::Value;
use tempfile::TempDir;
use testkit::fake::FakeStore;
use testkit::fake::{Arrival, FakeAgent, FakeBackend, code_below, history_below};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a step of these tests may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A master with its pods and records. A second master may share these pods and records.
pub(crate) struct Master {
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) backend: FakeBackend,
    pub(crate) store: FakeStore,
    pub(crate) logs: TempDir,
    following: AbortHandle,
    url: Option<String>,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Master {
    pub(crate) fn new() -> Self {
        Self::over("first", FakeBackend::new(Arrival::AtOnce), FakeStore::default())
    }

    /// A master with this boot id and these pods and records.
    pub(crate) fn over(boot_id: &str, backend: FakeBackend, store: FakeStore) -> Self {
        Self::with_key(boot_id, AgentKey::random(), backend, store)
    }

    /// Like [`Self::over`], with this key for the tokens of its agents.
    pub(crate) fn with_key(boot_id: &str, agent_key: AgentKey, backend: FakeBackend, store: FakeStore) -> Self {
        let logs = tempfile::tempdir().expect("no folder");
        Self::with((boot_id, agent_key), backend, (store.clone(), Arc::new(store)), logs)
    }

    /// A master with these records, no pods, and the files below `logs`. It keeps this many finished jobs.
    pub(crate) fn keeping(kept: usize, boot_id: &str, store: FakeStore, logs: TempDir) -> Self {
        let (identity, backend) = ((boot_id, AgentKey::random()), FakeBackend::new(Arrival::AtOnce));
        Self::with_limit(kept, identity, backend, (store.clone(), Arc::new(store)), logs)
    }

    /// Like [`Self::over`]. `fill` stores code before the master begins.
    pub(crate) fn with_code(boot_id: &str, backend: FakeBackend, store: FakeStore, fill: impl Fn(&CodeStore)) -> Self {
        let logs = tempfile::tempdir().expect("no folder");
        fill(&code_below(logs.path()));
        Self::with((boot_id, AgentKey::random()), backend, (store.clone(), Arc::new(store)), logs)
    }

    fn with(
        identity: (&str, AgentKey),
        backend: FakeBackend,
        stores: (FakeStore, Arc<dyn JobStore>),
        logs: TempDir,
    ) -> Self {
        Self::with_limit(KEPT_FINISHED, identity, backend, stores, logs)
    }

    fn with_limit(
        kept: usize,
        (boot_id, agent_key): (&str, AgentKey),
        backend: FakeBackend,
        (store, seen_store): (FakeStore, Arc<dyn JobStore>),
        logs: TempDir,
    ) -> Self {
        let context = Context {
            store: seen_store,
            backend: Arc::new(backend.clone()),
            agents: AgentClient::new(),
            agent_key,
            boot_id: boot_id.to_owned(),
            code: code_below(logs.path()),
            tally: Tally::default(),
            history: history_below(logs.path()),
        };
        let jobs = Jobs::new(Arc::new(context), Archive::outlived(logs.path().to_owned(), BUDGET), kept);
        let following = tokio::spawn(Arc::clone(&jobs).run()).abort_handle();
        Self { jobs, backend, store, logs, following, url: None }
    }

    /// A new master that serves HTTP.
    pub(crate) async fn serving(token: Option<&str>) -> Self {
        Self::new().serve(token).await
    }

    /// A master that serves HTTP, with the records in `seen_store`.
    pub(crate) async fn serving_over(seen_store: Arc<dyn JobStore>) -> Self {
        Self::reading("first", FakeBackend::new(Arrival::AtOnce), seen_store).await.serve(None).await
    }

    /// A master with this boot id, these pods, and the records in `seen_store`, which it has read.
    pub(crate) async fn reading(boot_id: &str, backend: FakeBackend, seen_store: Arc<dyn JobStore>) -> Self {
        let (stores, logs) = ((FakeStore::default(), seen_store), tempfile::tempdir().expect("no folder"));
        Self::with((boot_id, AgentKey::random()), backend, stores, logs).complete().await
    }

    /// Stops this master. Returns a second master with the same pods and records, which it has read.
    pub(crate) async fn successor(&self) -> Self {
        self.stop_following().await;
        Self::over("second", self.backend.clone(), self.store.clone()).complete().await
    }

    /// Waits until the master has read the records.
    pub(crate) async fn complete(self) -> Self {
        in_time("the master has read the records", self.jobs.complete()).await;
        self
    }

    pub(crate) async fn serve(self, token: Option<&str>) -> Self {
        let mut master = self;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no free port");
        master.url = Some(format!("http://{}", listener.local_addr().expect("the listener has no address")));
        let guard = token.map_or(Guard::ThisMachine, |token| Guard::Token(token.to_owned()));
        let about = AboutMaster {
            backend: BackendKind::Process,
            place: ReplicaHost::Processes,
            agent_binary: None,
            python: None,
        };
        let server = Server::new(Arc::clone(&master.jobs), guard, about, CancellationToken::new());
        tokio::spawn(async move { server.serve(listener).await });
        master
    }

    /// Stops following the records and driving jobs. The master does not see later events.
    pub(crate) async fn stop_following(&self) {
        self.following.abort();
        for view in self.jobs.table.list() {
            let mut view = self.jobs.table.find(&view.name).expect("a listed job has no driver").view;
            // A driver drops the view's sender when it ends.
            in_time("the driver ends", async { while view.changed().await.is_ok() {} }).await;
        }
    }

    /// Follows the records again.
    pub(crate) fn follow_again(&mut self) {
        self.following = tokio::spawn(Arc::clone(&self.jobs).run()).abort_handle();
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url.as_ref().expect("this master does not serve HTTP"))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::of(client().get(self.url(path))).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        Answer::of(client().post(self.url(path)).json(body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        Answer::of(client().patch(self.url(path)).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        Answer::of(client().delete(self.url(path))).await
    }

    /// Sends these bytes, and returns all that the master answers before it closes the connection.
    pub(crate) async fn raw(&self, request: &[u8]) -> String {
        let url = self.url("");
        let mut stream =
            TcpStream::connect(url.strip_prefix("http://").expect("not a URL")).await.expect("cannot connect");
        let mut answer = vec![];
        // The master may close the connection before it has read everything.
        let _ = stream.write_all(request).await;
        let _ = in_time("the master closes the connection", stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Submits a new job.
    pub(crate) async fn submit(&self, spec: JobSpec) -> JobHandle {
        match self.jobs.requests.submit(spec).await.expect("the job was not accepted") {
            Submitted::Created(handle) => handle,
            Submitted::Existing(handle) => panic!("the job exists already: {:?}", handle.view.borrow()),
        }
    }

    /// The job with this name.
    pub(crate) fn job(&self, name: &JobName) -> JobHandle {
        self.jobs.table.find(name).expect("no record of the job")
    }

    pub(crate) async fn suspend(&self, spec: &JobSpec, is_suspended: bool) {
        let patch = JobPatch { suspended: Some(is_suspended), ..JobPatch::default() };
        self.jobs.requests.patch(&spec.name, patch).await.expect("the change was refused");
    }

    pub(crate) async fn wish(&self, job: &JobName, wish: Wish) {
        self.jobs.requests.wish(job, wish).await.expect("no record of the job");
    }

    /// Waits until the runs of all agents of the job have started, and returns the agents.
    pub(crate) async fn started(&self, spec: &JobSpec) -> Vec<FakeAgent> {
        let mut agents = Vec::new();
        for id in job::plan::replicas(spec) {
            let agent = self.backend.agent(&spec.name, id).await;
            in_time(&format!("{id} starts"), agent.started()).await;
            agents.push(agent);
        }
        agents
    }

    /// Submits the job, and lets all its runs succeed.
    pub(crate) async fn succeed(&self, spec: &JobSpec) -> JobView {
        let job = self.submit(spec.clone()).await;
        for agent in self.started(spec).await {
            agent.exit(ExitOutcome::Code(0));
        }
        reach(&job, JobState::Succeeded).await
    }

    /// Waits until the registry no longer has the job.
    pub(crate) async fn forgotten(&self, name: &JobName) {
        let gone = async {
            while self.jobs.table.find(name).is_some() {
                tokio::task::yield_now().await;
            }
        };
        in_time("the job is forgotten", gone).await;
    }
}

/// An answer of the master.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn of(request: reqwest::RequestBuilder) -> Self {
        let response = in_time("an answer comes", request.send()).await.expect("the master does not answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = in_time("the answer ends", response.text()).await.expect("the answer breaks off");
        Self { status, headers, body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The code of a problem. Asserts that the answer is a well-formed problem.
    pub(crate) fn code(&self) -> String {
        let problem = self.json();
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(problem["status"], self.status, "{self:?}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 10), "{self:?}");
        problem["code"].as_str().unwrap_or_else(|| panic!("no code: {self:?}")).to_owned()
    }
}

/// The status of each answer on a connection.
pub(crate) fn statuses(answers: &str) -> Vec<u16> {
    let after = answers.split("HTTP/1.").skip(1);
    after.map(|answer| answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("not a status")).collect()
}

pub(crate) fn client() -> reqwest::Client {
    // The crate `client` enables TLS in reqwest for the whole workspace, so every client needs a crypto provider.
    // Installing it a second time has no effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().expect("no client")
}

pub(crate) fn worker(index: u32) -> ReplicaId {
    format!("worker-{index}").parse().expect("not a replica")
}

/// A job of this many workers, for which a failure is final.
pub(crate) fn spec(name: &str, worker_num: u32) -> JobSpec {
    spec_with(name, worker_num, RunPolicy { max_restarts: 0, ..RunPolicy::default() })
}

/// A job of this many workers with this run policy.
pub(crate) fn spec_with(name: &str, worker_num: u32, run_policy: RunPolicy) -> JobSpec {
    let request = JobRequest {
        worker_num: Some(worker_num),
        run_policy,
        ..JobRequest::new(name.parse().expect("not a job's name"), Strategy::AllReduce)
    };
    JobSpec::try_from(request).expect("an invalid request")
}

/// Waits until the job is in this state.
pub(crate) async fn reach(job: &JobHandle, state: JobState) -> JobView {
    until(job, |view| view.state == state).await
}

/// Waits until `test` accepts the view of the job.
pub(crate) async fn until(job: &JobHandle, test: impl FnMut(&JobView) -> bool) -> JobView {
    let mut view = job.view.clone();
    let found = timeout(DEADLINE, view.wait_for(test)).await.map(|view| view.expect("the driver has ended").clone());
    found.unwrap_or_else(|_| panic!("the expected view did not come: {:#?}", job.view.borrow()))
}

/// Waits until `future` ends, for at most [`DEADLINE`]. `what` describes the condition in the panic message.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("this did not happen in time: {what}"))
}

/// How many files there are below a folder.
pub(crate) fn files_below(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).map(|entries| entries.flatten().collect()).unwrap_or(vec![]);
    let count = |path: &Path| if path.is_dir() { files_below(path) } else { 1 };
    let others = entries.iter().filter(|entry| entry.file_name() != "history");
    others.map(|entry| count(&entry.path())).sum()
}
