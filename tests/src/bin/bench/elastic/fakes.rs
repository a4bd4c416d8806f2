//! Measures gangs of fake agents, which answer but run no script: the time to restart after a crash, compared with a
//! loop that sends the same bytes, and the number of writes of the record after an eviction.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use job::plan;
use job::rendezvous::Rendezvous;
use master::agents::client::{AgentAnswer, AgentClient, AgentError, POLL_WAIT_MAX, PartOfStart, Poll};
use master::backend::PodBackend as _;
use master::host::descriptors::Descriptors;
use master::registry::{JobHandle, Submitted};
use protocol::agent::ExitOutcome;
use protocol::agent::Membership;
use protocol::ids::{Generation, ReplicaId, Role};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::run_policy::RunPolicy;
use protocol::view::{JobState, JobView};
use rustix::process::{Resource, getrlimit};
use testkit::fake::{Arrival, FakeAgent, FakeBackend, FakeStore};
use tokio::task::JoinSet;

use crate::launch;
use crate::sample::{Figure, RUNS, Row, median};

/// Pairs of sizes: a small gang, and a gang four times as large. If the limit of open files is too low for the first
/// pair, the second pair is measured.
const SIZES: [[u32; 2]; 2] = [[1000, 4000], [500, 2000]];
/// Number of open files of each fake agent: its listener, and both ends of its connections for status, output and
/// calls.
const FILES_PER_AGENT: u64 = 7;
/// Number of agents that the master calls at the same time (`AGENTS_AT_ONCE` in `master/src/driver/tasks.rs`).
const AT_ONCE: usize = 64;
const DEADLINE: Duration = Duration::from_secs(300);
/// Pause between two looks at the agents.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Measures crashes of a script. After each crash, the master stops the other scripts and restarts all.
pub(crate) async fn changes() -> anyhow::Result<Vec<Row>> {
    Descriptors::raise()?;
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let fits = |[_, large]: &&[u32; 2]| u64::from(*large) * FILES_PER_AGENT < most;
    let [small, large] = *SIZES.iter().find(fits).context("too few open files are allowed; see ulimit -Hn")?;
    let (quick, slow) = (crashes(small).await?, crashes(large).await?);
    let row = |agents, times: &[Duration], bare_is, bare| Row {
        what: format!("crash of 1 script, until all have restarted, {agents} fake agents"),
        muster: Figure::Times(times.to_vec()),
        bare: Some(bare),
        bare_is,
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
    let gang = FakeGang::start(spec(None, count)?).await?;
    let agents = gang.agents().await;
    let mut times = vec![];
    for _ in 0..RUNS {
        gang.is_followed(&agents).await?;
        let before = gang.job.view.borrow().generation;
        let event = Instant::now();
        agents.last().context("the gang has no agents")?.exit(ExitOutcome::Code(1));
        gang.until(|view| view.state == JobState::Running && view.generation > before).await?;
        agents.iter().for_each(FakeAgent::forget);
        times.push(last_start(&agents)?.duration_since(event));
    }
    gang.end(&agents).await?;
    Ok(times)
}

/// Measures loops that send prepared bytes: a stop to every agent, then its environment, then the request to run.
async fn loops(count: u32, ends: Ends) -> anyhow::Result<Vec<Duration>> {
    let backend = FakeBackend::new(Arrival::AtOnce);
    let spec = spec(None, count)?;
    let agents = launch::addresses(&backend, &spec).await?;
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
        let part = PartOfStart {
            generation,
            membership: Membership { seat: 0, of: 1, start: 0, pushes: 0 },
            code: None,
            renewal: None,
        };
        let has_runs = sequence > 1;
        let awaits = ends == Ends::Awaited && has_runs;
        let reports = if awaits { reports(&client, &backend, &spec).await? } else { JoinSet::new() };
        let begin = Instant::now();
        each(agents.clone(), |agent| client.stop(agent, None, Duration::ZERO)).await?;
        reports.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
        each(bodies, |(agent, body)| client.configure(agent, part, body)).await?;
        each(agents, |agent| client.run(agent, generation)).await?;
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
        let poll = Poll { after: agent.status().seq, wait: POLL_WAIT_MAX };
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
    let gang = FakeGang::start(spec(Some(4), 8)?).await?;
    let before = (gang.store.history().await.len(), gang.job.view.borrow().generation);
    let first = ReplicaId { role: Role::Worker, index: 0 };
    gang.backend.evict(&gang.spec.name, first, "node drained");
    let is_back =
        |view: &JobView| view.state == JobState::Running && view.generation > before.1 && view.roster.len() == 8;
    gang.until(is_back).await?;
    let written = gang.store.history().await.len() - before.0;
    gang.end(&gang.agents().await).await?;
    let muster = Figure::Count(u64::try_from(written)?);
    Ok(vec![Row { what: "record writes, worker evicted and replaced".to_owned(), muster, bare: None, bare_is: "" }])
}

/// A job whose agents are fake, and its master.
struct FakeGang {
    backend: FakeBackend,
    store: FakeStore,
    spec: JobSpec,
    job: JobHandle,
    following: tokio::task::JoinHandle<Result<(), master::store::StoreError>>,
    _logs: tempfile::TempDir,
}

impl FakeGang {
    async fn start(spec: JobSpec) -> anyhow::Result<Self> {
        let logs = tempfile::tempdir()?;
        let (backend, store) = (FakeBackend::new(Arrival::AtOnce), FakeStore::default());
        let jobs = launch::jobs(&backend, &store, logs.path());
        let following = tokio::spawn(Arc::clone(&jobs).run());
        let (Submitted::Created(job) | Submitted::Existing(job)) = jobs.submit(spec.clone()).await?;
        let gang = Self { backend, store, spec, job, following, _logs: logs };
        gang.until(|view| view.state == JobState::Running).await?;
        Ok(gang)
    }

    async fn agents(&self) -> Vec<FakeAgent> {
        let mut agents = vec![];
        for replica in plan::replicas(&self.spec) {
            agents.push(self.backend.agent(&self.spec.name, replica).await);
        }
        agents
    }

    async fn until(&self, is_it: impl FnMut(&JobView) -> bool) -> anyhow::Result<()> {
        let mut view = self.job.view.clone();
        let seen = tokio::time::timeout(DEADLINE, view.wait_for(is_it)).await;
        seen.with_context(|| format!("timeout; the job's state: {:?}", self.job.view.borrow().state))??;
        Ok(())
    }

    /// Waits until the master follows every agent.
    async fn is_followed(&self, agents: &[FakeAgent]) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !agents.iter().all(FakeAgent::is_followed) {
            ensure!(begin.elapsed() < DEADLINE, "the master does not follow every agent within {DEADLINE:?}");
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    async fn end(&self, agents: &[FakeAgent]) -> anyhow::Result<()> {
        agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
        self.until(|view| view.state.is_finished()).await?;
        self.following.abort();
        self.backend.shutdown().await;
        Ok(())
    }
}

fn last_start(agents: &[FakeAgent]) -> anyhow::Result<Instant> {
    let starts: Vec<Instant> = agents.iter().filter_map(|agent| agent.history().starts.last().copied()).collect();
    ensure!(starts.len() == agents.len(), "{} of {} agents have started a run", starts.len(), agents.len());
    starts.into_iter().max().context("the gang has no agents")
}

/// A job that restarts without a pause.
fn spec(worker_min: Option<u32>, workers: u32) -> anyhow::Result<JobSpec> {
    let request = JobRequest {
        worker_min,
        worker_num: Some(workers),
        run_policy: RunPolicy { max_restarts: 1000, backoff_seconds: 0, ..RunPolicy::default() },
        ..JobRequest::new("bench".parse()?, Strategy::AllReduce)
    };
    Ok(JobSpec::try_from(request)?)
}
