//! Gangs of fake agents, which answer but run no script, and a master's registry in this process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use job::key::JobKey;
use job::observation::PodState;
use job::plan;
use master::agents::client::{AgentClient, PartOfStart};
use master::agents::token::AgentKey;
use master::backend::{PodBackend as _, PodSpec};
use master::driver::Context;
use master::logs::{Archive, BUDGET};
use master::registry::{JobHandle, Jobs, KEPT_FINISHED, Submitted};
use master::tally::Tally;
use protocol::agent::{ExitOutcome, Membership};
use protocol::ids::Generation;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::run_policy::RunPolicy;
use protocol::view::{JobState, JobView};
use testkit::fake::{Arrival, FakeAgent, FakeBackend, FakeStore, code_below, history_below};

pub(crate) const DEADLINE: Duration = Duration::from_secs(300);
/// Pause between two looks at the agents.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A job whose agents are fake, and its master.
pub(crate) struct FakeGang {
    pub(crate) backend: FakeBackend,
    pub(crate) store: FakeStore,
    pub(crate) spec: JobSpec,
    pub(crate) job: JobHandle,
    following: tokio::task::JoinHandle<Result<(), master::store::StoreError>>,
    _logs: tempfile::TempDir,
}

impl FakeGang {
    /// Submits the job, and waits until it runs.
    pub(crate) async fn start(spec: JobSpec) -> anyhow::Result<Self> {
        let logs = tempfile::tempdir()?;
        let (backend, store) = (FakeBackend::new(Arrival::AtOnce), FakeStore::default());
        let jobs = jobs(&backend, &store, logs.path());
        let following = tokio::spawn(Arc::clone(&jobs).run());
        let (Submitted::Created(job) | Submitted::Existing(job)) = jobs.requests.submit(spec.clone()).await?;
        let gang = Self { backend, store, spec, job, following, _logs: logs };
        gang.until(|view| view.state == JobState::Running).await?;
        Ok(gang)
    }

    pub(crate) async fn agents(&self) -> Vec<FakeAgent> {
        let mut agents = vec![];
        for replica in plan::replicas(&self.spec) {
            agents.push(self.backend.agent(&self.spec.name, replica).await);
        }
        agents
    }

    pub(crate) async fn until(&self, is_it: impl FnMut(&JobView) -> bool) -> anyhow::Result<()> {
        let mut view = self.job.view.clone();
        let seen = tokio::time::timeout(DEADLINE, view.wait_for(is_it)).await;
        seen.with_context(|| format!("timeout; the job's state: {:?}", self.job.view.borrow().state))??;
        Ok(())
    }

    /// Waits until the master follows every agent.
    pub(crate) async fn is_followed(&self, agents: &[FakeAgent]) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !agents.iter().all(FakeAgent::is_followed) {
            ensure!(begin.elapsed() < DEADLINE, "the master does not follow every agent within {DEADLINE:?}");
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    pub(crate) async fn end(&self, agents: &[FakeAgent]) -> anyhow::Result<()> {
        agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
        self.until(|view| view.state.is_finished()).await?;
        self.following.abort();
        self.backend.shutdown().await;
        Ok(())
    }
}

/// Returns when each agent has last started a run.
pub(crate) fn last_starts(agents: &[FakeAgent]) -> anyhow::Result<Vec<Instant>> {
    let starts: Vec<Instant> = agents.iter().filter_map(|agent| agent.history().starts.last().copied()).collect();
    ensure!(starts.len() == agents.len(), "{} of {} agents have started a run", starts.len(), agents.len());
    Ok(starts)
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
        tally: Tally::default(),
        history: history_below(logs),
    };
    Jobs::new(Arc::new(context), Archive::new(logs.to_owned(), BUDGET), KEPT_FINISHED)
}

/// A job that restarts without a pause.
pub(crate) fn spec(name: &str, worker_min: Option<u32>, workers: u32) -> anyhow::Result<JobSpec> {
    let request = JobRequest {
        worker_min,
        worker_num: Some(workers),
        run_policy: RunPolicy { max_restarts: 1000, backoff_seconds: 0, ..RunPolicy::default() },
        ..JobRequest::new(name.parse()?, Strategy::AllReduce)
    };
    Ok(JobSpec::try_from(request)?)
}

/// Creates the pods of a job that has no master. Returns the addresses of their agents.
pub(crate) async fn addresses(backend: &FakeBackend, spec: &JobSpec) -> anyhow::Result<Vec<SocketAddr>> {
    let key = JobKey { name: spec.name.clone(), uid: "bench".to_owned() };
    for replica in plan::replicas(spec) {
        backend.create(PodSpec::new(key.clone(), spec, replica, String::new())).await?;
    }
    let table = backend.watch(&key).borrow().clone();
    Ok(table.values().filter_map(|pod| agent_of(&pod.state)).collect())
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

/// What a loop without a master tells each agent about this start.
pub(crate) fn part_of(generation: Generation) -> PartOfStart {
    PartOfStart {
        generation,
        membership: Membership { seat: 0, of: 1, start: 0, pushes: 0 },
        code: None,
        renewal: None,
        processes: 1,
    }
}
