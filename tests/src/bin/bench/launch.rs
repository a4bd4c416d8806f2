//! Measures the time from the last agent's first answer to the last start of exec.py, and from the first start to the
//! last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use e2e::Scene;
use job::plan;
use job::rendezvous::Rendezvous;
use master::agents::client::AgentClient;
use master::backend::PodBackend as _;
use master::host::descriptors::Descriptors;
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobTimes;
use rustix::time::{ClockId, clock_gettime};
use testkit::fake::{Arrival, FakeBackend};

use crate::gang::{FakeGang, addresses, last_starts, part_of, spec};
use crate::sample::{Figure, RUNS, Row, median};
use crate::spawn::BareAgent;

/// Number of fake agents. They share a process, but each has its own address.
const FAKE_AGENTS: u32 = 1000;
const REAL_AGENTS: u32 = 4;
/// The gangs whose launches are compared.
const GROWTH: [u32; 2] = [500, 4000];
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
        bare.push(bare_loop(&addresses(&backend, &spec("bench", None, FAKE_AGENTS)?).await?).await?);
        backend.shutdown().await;
    }
    Ok(rows("1000 fake agents", &[added, skews, bare]))
}

fn rows(of: &str, [added, skews, bare]: &[Vec<Duration>; 3]) -> Vec<Row> {
    let time = |times: &Vec<Duration>| Figure::Time(median(times.clone()));
    let bare_is = "the same requests, one after the other";
    vec![
        Row::new(format!("last answer to last start, {of}"), time(added)).against(time(bare), bare_is),
        Row::new(format!("first start to last start, {of}"), time(skews)),
    ]
}

async fn launch_fakes() -> anyhow::Result<(Duration, Duration)> {
    let gang = FakeGang::start(spec("bench", None, FAKE_AGENTS)?).await?;
    let agents = gang.agents().await;
    let added = launch_time(&gang.job.view.borrow().times)?;
    let starts = last_starts(&agents)?;
    gang.end(&agents).await?;
    let (first, last) = starts.iter().min().zip(starts.iter().max()).context("no agent has started a run")?;
    Ok((added, last.duration_since(*first)))
}

/// Measures how the processor time of a launch grows with the gang. The fakes and the master share a process, and each of
/// N agents gets a list of N addresses.
pub(crate) async fn growth() -> anyhow::Result<Vec<Row>> {
    Descriptors::raise()?;
    let (small, large) = (launch_cpu(GROWTH[0]).await?, launch_cpu(GROWTH[1]).await?);
    let times = GROWTH[1] / GROWTH[0];
    let what = format!("processor time of a launch, {} fake agents", GROWTH[1]);
    Ok(vec![Row::new(what, Figure::Time(large)).against(Figure::Time(small * times), "8 times that of 500 agents")])
}

/// The processor time of this process from the submit until all agents have acknowledged their start.
async fn launch_cpu(agents: u32) -> anyhow::Result<Duration> {
    let mut times = vec![];
    for _ in 0..RUNS {
        let before = clock_gettime(ClockId::ProcessCPUTime);
        let gang = FakeGang::start(spec("bench", None, agents)?).await?;
        let used = clock_gettime(ClockId::ProcessCPUTime) - before;
        times.push(used.try_into().context("the clock went backwards")?);
        gang.end(&gang.agents().await).await?;
    }
    Ok(median(times))
}

/// Returns the time from the last agent's first answer until all agents have acknowledged their start.
fn launch_time(times: &JobTimes) -> anyhow::Result<Duration> {
    let (joined, started) = times.joined.zip(times.started).context("the job has no time `joined` or `started`")?;
    Ok(Duration::from_millis(started.0 - joined.0))
}

/// A simple loop for comparison. It sends every agent its environment, and then every agent the request to run.
async fn bare_loop(agents: &[SocketAddr]) -> anyhow::Result<Duration> {
    let client = AgentClient::new();
    let spec = spec("bench", None, u32::try_from(agents.len())?)?;
    let replicas = plan::replicas(&spec);
    let members: BTreeMap<ReplicaId, SocketAddr> = replicas.iter().copied().zip(agents.iter().copied()).collect();
    for agent in agents {
        client.status(*agent, None).await?;
    }
    let begin = Instant::now();
    let rendezvous = Rendezvous::new(&spec, FIRST, &members);
    for (replica, agent) in &members {
        let body = serde_json::to_vec(&rendezvous.environment(*replica))?;
        client.configure(*agent, part_of(FIRST), Bytes::from(body)).await?;
    }
    for agent in agents {
        client.run(*agent, FIRST).await?;
    }
    Ok(begin.elapsed())
}
