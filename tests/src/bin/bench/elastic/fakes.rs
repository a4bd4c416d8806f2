//! Measures gangs of fake agents, which answer but run no script. Compares the time to restart after a crash with a
//! loop that sends the same bytes. Also counts the writes of the record after an eviction.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use job::plan;
use job::rendezvous::Rendezvous;
use master::agents::client::{AgentAnswer, AgentClient, AgentError, POLL_WAIT_MAX, Poll};
use master::backend::PodBackend as _;
use master::host::descriptors::Descriptors;
use protocol::agent::{ExitOutcome, FirstSignal};
use protocol::ids::{Generation, ReplicaId, Role};
use protocol::job::JobSpec;
use protocol::view::{JobState, JobView};
use rustix::process::{Resource, getrlimit};
use testkit::fake::{Arrival, FakeAgent, FakeBackend};
use tokio::task::JoinSet;

use crate::gang::{DEADLINE, FakeGang, addresses, last_starts, part_of, spec};
use crate::sample::{Figure, RUNS, Row, median};

/// Pairs of sizes: a small gang, and a gang four times as large. If the limit of open files is too low for the first
/// pair, the second pair is measured.
const SIZES: [[u32; 2]; 2] = [[1000, 4000], [500, 2000]];
/// Number of open files of each fake agent: its listener, and both ends of its connections for status, output and
/// calls.
const FILES_PER_AGENT: u64 = 7;
/// Number of agents that the master calls at the same time (`AGENTS_AT_ONCE` in `master/src/driver/tasks.rs`).
const AT_ONCE: usize = 64;

/// Measures crashes of a script. After each crash, the master stops the other scripts and restarts all.
pub(crate) async fn changes() -> anyhow::Result<Vec<Row>> {
    Descriptors::raise()?;
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let fits = |[_, large]: &&[u32; 2]| u64::from(*large) * FILES_PER_AGENT < most;
    let [small, large] = *SIZES.iter().find(fits).context("too few open files are allowed; see ulimit -Hn")?;
    let (quick, slow) = (crashes(small).await?, crashes(large).await?);
    let row = |agents, times: &[Duration], bare_is, bare| {
        let what = format!("crash of 1 script, until all have restarted, {agents} fake agents");
        Row::new(what, Figure::Times(times.to_vec())).against(bare, bare_is)
    };
    let mut rows = vec![row(large, &slow, "a quarter of the agents", Figure::Time(median(quick.clone())))];
    for (agents, times) in [(small, quick), (large, slow)] {
        for (ends, bare_is) in [
            (Ends::Assumed, "stop, config, run: the same bytes, 64 at once"),
            (Ends::Awaited, "the same, with the report of each run's end"),
        ] {
            rows.push(row(agents, &times, bare_is, Figure::Times(loops(agents, ends).await?)));
        }
    }
    Ok(rows)
}

/// Whether a loop waits until the stopped runs have ended. Without this wait, runs of two starts could overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Assumed,
    Awaited,
}

async fn crashes(count: u32) -> anyhow::Result<Vec<Duration>> {
    let gang = FakeGang::start(spec("bench", None, count)?).await?;
    let agents = gang.agents().await;
    let mut times = vec![];
    for _ in 0..RUNS {
        gang.is_followed(&agents).await?;
        let before = gang.job.view.borrow().generation;
        let event = Instant::now();
        agents.last().context("the gang has no agents")?.exit(ExitOutcome::Code(1));
        gang.until(|view| view.state == JobState::Running && view.generation > before).await?;
        agents.iter().for_each(FakeAgent::forget);
        let last = last_starts(&agents)?.into_iter().max().context("the gang has no agents")?;
        times.push(last.duration_since(event));
    }
    gang.end(&agents).await?;
    Ok(times)
}

/// Measures loops that send prepared bytes: a stop to every agent, then its environment, then the request to run.
async fn loops(count: u32, ends: Ends) -> anyhow::Result<Vec<Duration>> {
    let backend = FakeBackend::new(Arrival::AtOnce);
    let spec = spec("bench", None, count)?;
    let agents = addresses(&backend, &spec).await?;
    let members = plan::replicas(&spec).into_iter().zip(agents).collect();
    let client = AgentClient::new();
    let mut times = vec![];
    // The first iteration only starts the runs and is not measured.
    for sequence in 1..=u32::try_from(RUNS)? + 1 {
        let generation = Generation { epoch: 1, sequence };
        let rendezvous = Rendezvous::new(&spec, generation, &members);
        let body = |(replica, agent): (&ReplicaId, &SocketAddr)| {
            anyhow::Ok((*agent, Bytes::from(serde_json::to_vec(&rendezvous.environment(*replica))?)))
        };
        let bodies = members.iter().map(body).collect::<anyhow::Result<Vec<_>>>()?;
        let agents: Vec<SocketAddr> = members.values().copied().collect();
        let has_runs = sequence > 1;
        let awaits = ends == Ends::Awaited && has_runs;
        let reports = if awaits { reports(&client, &backend, &spec).await? } else { JoinSet::new() };
        let begin = Instant::now();
        each(agents.clone(), |agent| client.stop(agent, None, FirstSignal::Term, Duration::ZERO)).await?;
        reports.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
        each(bodies, |(agent, body)| client.configure(agent, part_of(generation), body)).await?;
        each(agents, async |agent| client.run(agent, generation).await.map(drop)).await?;
        times.push(begin.elapsed());
        backend.agents(&spec.name).values().for_each(FakeAgent::forget);
    }
    backend.shutdown().await;
    Ok(times.split_off(1))
}

/// Polls each agent for the next change of its status, like a master while the gang runs. Returns when all agents have
/// received the poll.
async fn reports(
    client: &AgentClient,
    backend: &FakeBackend,
    spec: &JobSpec,
) -> anyhow::Result<JoinSet<Result<AgentAnswer, AgentError>>> {
    let (mut reports, agents) = (JoinSet::new(), backend.agents(&spec.name));
    for agent in agents.values() {
        let (client, address, polls) = (client.clone(), agent.address(), agent.polls());
        let poll = Poll { after: agent.status().seq, wait: POLL_WAIT_MAX, lease: None };
        reports.spawn(async move { client.status(address, Some(poll)).await });
        let begin = Instant::now();
        while agent.polls() == polls {
            ensure!(begin.elapsed() < DEADLINE, "an agent has received no poll within {DEADLINE:?}");
            tokio::task::yield_now().await;
        }
    }
    Ok(reports)
}

async fn each<T, F: Future<Output = Result<(), AgentError>>>(
    all: Vec<T>,
    call: impl Fn(T) -> F,
) -> Result<(), AgentError> {
    stream::iter(all).map(Ok).try_for_each_concurrent(AT_ONCE, call).await
}

/// Counts the writes of the record while a worker is evicted and replaced.
pub(crate) async fn writes() -> anyhow::Result<Vec<Row>> {
    let gang = FakeGang::start(spec("bench", Some(4), 8)?).await?;
    let before = (gang.store.history().await.len(), gang.job.view.borrow().generation);
    let first = ReplicaId { role: Role::Worker, index: 0 };
    gang.backend.evict(&gang.spec.name, first, "node drained");
    let is_back =
        |view: &JobView| view.state == JobState::Running && view.generation > before.1 && view.roster.len() == 8;
    gang.until(is_back).await?;
    let written = gang.store.history().await.len() - before.0;
    gang.end(&gang.agents().await).await?;
    Ok(vec![Row::new("record writes, worker evicted and replaced", Figure::Count(u64::try_from(written)?))])
}
