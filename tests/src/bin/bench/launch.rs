//! Measures the time from the last agent's first answer to the last start of exec.py, and from the first start to the
//! last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use e2e::Scene;
use job::key::JobKey;
use job::observation::PodState;
use job::plan;
use job::rendezvous::Rendezvous;
use master::agents::client::{AgentClient, PartOfStart};
use master::agents::token::AgentKey;
use master::backend::{PodBackend, PodSpec};
use master::driver::Context;
use master::registry::{Jobs, Submitted};
use protocol::agent::{ExitOutcome, Membership};
use protocol::ids::{Generation, ReplicaId};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::view::{JobState, JobTimes};
use testkit::fake::FakeStore;
use testkit::fake::{Arrival, FakeAgent, FakeBackend, code_below};

use crate::sample::{Figure, RUNS, Row, median};
use crate::spawn::BareAgent;

/// Number of fake agents. They share a process, but each has its own address.
const FAKE_AGENTS: u32 = 1000;
const REAL_AGENTS: u32 = 4;
const FIRST: Generation = Generation { epoch: 1, sequence: 1 };

/// Measures four real agents. Each agent starts Python.
pub(crate) async fn real() -> anyhow::Result<Vec<Row>> {
    let scene = Scene::new("");
    let (mut added, mut skews, mut bare) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        let view = scene.run(&["--worker-num", &REAL_AGENTS.to_string(), "-o", "json"]).code(0).view();
        added.push(launch_time(&view.times)?);
        let starts: Vec<u64> = view.replicas.iter().filter_map(|replica| Some(replica.started_at?.0)).collect();
        let (first, last) = starts.iter().min().zip(starts.iter().max()).context("no replica has a start time")?;
        skews.push(Duration::from_millis(last - first));
        let agents = (0..REAL_AGENTS).map(|_| BareAgent::start(scene.path())).collect::<anyhow::Result<Vec<_>>>()?;
        bare.push(bare_loop(&agents.iter().map(|agent| agent.address).collect::<Vec<_>>()).await?);
    }
    Ok(rows("4 real agents", &[added, skews, bare]))
}

/// Measures a thousand fake agents, which answer but run no script.
pub(crate) async fn fake() -> anyhow::Result<Vec<Row>> {
    let (mut added, mut skews, mut bare) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        let (time, skew) = launch_fakes().await?;
        added.push(time);
        skews.push(skew);
        let backend = FakeBackend::new(Arrival::AtOnce);
        bare.push(bare_loop(&addresses(&backend, &spec(FAKE_AGENTS)?).await?).await?);
        backend.shutdown().await;
    }
    Ok(rows("1000 fake agents", &[added, skews, bare]))
}

fn rows(of: &str, [added, skews, bare]: &[Vec<Duration>; 3]) -> Vec<Row> {
    let time = |times: &Vec<Duration>| Figure::Time(median(times.clone()));
    let bare_is = "the same requests, one after the other";
    vec![
        Row { what: format!("last answer to last start, {of}"), muster: time(added), bare: Some(time(bare)), bare_is },
        Row { what: format!("first start to last start, {of}"), muster: time(skews), bare: None, bare_is: "" },
    ]
}

async fn launch_fakes() -> anyhow::Result<(Duration, Duration)> {
    let logs = tempfile::tempdir()?;
    let backend = FakeBackend::new(Arrival::AtOnce);
    let jobs = jobs(&backend, &FakeStore::default(), logs.path());
    let following = tokio::spawn(Arc::clone(&jobs).run());
    let spec = spec(FAKE_AGENTS)?;
    let (Submitted::Created(handle) | Submitted::Existing(handle)) = jobs.submit(spec.clone()).await?;
    let mut view = handle.view;
    let mut agents: Vec<FakeAgent> = vec![];
    for replica in plan::replicas(&spec) {
        agents.push(backend.agent(&spec.name, replica).await);
    }
    let added = launch_time(&view.wait_for(|view| view.state == JobState::Running).await?.times)?;
    let starts: Vec<Instant> = agents.iter().flat_map(|agent| agent.history().starts).collect();
    ensure!(starts.len() == agents.len(), "there were {} starts of {} agents", starts.len(), agents.len());
    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    view.wait_for(|view| view.state.is_finished()).await?;
    following.abort();
    let (first, last) = starts.iter().min().zip(starts.iter().max()).context("no agent has started a run")?;
    Ok((added, last.duration_since(*first)))
}

/// Returns the registry of a master with these pods and records. `logs` is the folder for output.
pub(crate) fn jobs(backend: &FakeBackend, store: &FakeStore, logs: &Path) -> Arc<Jobs> {
    let context = Context {
        store: Arc::new(store.clone()),
        backend: Arc::new(backend.clone()),
        agents: AgentClient::new(),
        agent_key: AgentKey::random(),
        boot_id: "bench".to_owned(),
        code: code_below(logs),
    };
    Jobs::new(Arc::new(context), logs.to_owned())
}

/// Returns the time from the last agent's first answer until all agents have acknowledged their start.
fn launch_time(times: &JobTimes) -> anyhow::Result<Duration> {
    let (joined, started) = times.joined.zip(times.started).context("the job has no time `joined` or `started`")?;
    Ok(Duration::from_millis(started.0 - joined.0))
}

/// A simple loop for comparison. It sends every agent its environment, and then every agent the request to run.
async fn bare_loop(agents: &[SocketAddr]) -> anyhow::Result<Duration> {
    let client = AgentClient::new();
    let spec = spec(u32::try_from(agents.len())?)?;
    let replicas = plan::replicas(&spec);
    let members: BTreeMap<ReplicaId, SocketAddr> = replicas.iter().copied().zip(agents.iter().copied()).collect();
    for agent in agents {
        client.status(*agent, None).await?;
    }
    let begin = Instant::now();
    let rendezvous = Rendezvous::new(&spec, FIRST, &members);
    let part = PartOfStart {
        generation: FIRST,
        membership: Membership { seat: 0, of: 1, start: 0, pushes: 0 },
        code: None,
        renewal: None,
    };
    for (replica, agent) in &members {
        let body = serde_json::to_vec(&rendezvous.environment(*replica))?;
        client.configure(*agent, part, Bytes::from(body)).await?;
    }
    for agent in agents {
        client.run(*agent, FIRST).await?;
    }
    Ok(begin.elapsed())
}

fn spec(workers: u32) -> anyhow::Result<JobSpec> {
    let request = JobRequest { worker_num: Some(workers), ..JobRequest::new("bench".parse()?, Strategy::AllReduce) };
    Ok(JobSpec::try_from(request)?)
}

/// Creates the pods of a job that has no master. Returns the addresses of their agents.
pub(crate) async fn addresses(backend: &FakeBackend, spec: &JobSpec) -> anyhow::Result<Vec<SocketAddr>> {
    for replica in plan::replicas(spec) {
        backend.create(pod(spec, replica)).await?;
    }
    let table = backend.watch(&key(spec)).borrow().clone();
    Ok(table.values().filter_map(|pod| agent_of(&pod.state)).collect())
}

fn key(spec: &JobSpec) -> JobKey {
    JobKey { name: spec.name.clone(), uid: "bench".to_owned() }
}

fn pod(spec: &JobSpec, replica: ReplicaId) -> PodSpec {
    PodSpec::new(key(spec), spec, replica, String::new())
}

fn agent_of(state: &PodState) -> Option<SocketAddr> {
    match state {
        PodState::Running(addresses) => Some(addresses.agent),
        PodState::Pending { .. }
        | PodState::Unusable { .. }
        | PodState::Leaving { .. }
        | PodState::Disrupted { .. }
        | PodState::Terminated { .. } => None,
    }
}
