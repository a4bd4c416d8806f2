//! Where the matrix takes place: pods and records in memory, masters over them that can be struck, and the training
//! script, which knows nothing of masters.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use master::agent_client::AgentClient;
use master::agent_token::AgentKey;
use master::driver::Context;
use master::registry::Jobs;
use master::store::JobStore;
use protocol::agent::{ExitOutcome, RunState};
use protocol::ids::{Generation, ReplicaId};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::run_policy::RunPolicy;
use tempfile::TempDir;
use testkit::chaos::{self, Chaos, Strike};
use testkit::fake::FakeStore;
use testkit::fake::{Arrival, FakeBackend};
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::chaos::evidence::Mishaps;

/// How many workers a gang has.
const WORKERS: u32 = 3;
/// How many failed starts are made up for.
pub(crate) const BUDGET: u32 = 2;

/// What happens to the job besides the faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    /// The first start fails, the second succeeds; then the job is deleted.
    Completes,
    /// The first start fails, the second is cancelled; then the job is deleted.
    Cancelled,
    /// The cluster takes a pod of the first start, the second start fails, the third succeeds; then the job is deleted.
    Evicted,
}

impl Scenario {
    pub(crate) const ALL: [Self; 3] = [Self::Completes, Self::Cancelled, Self::Evicted];

    /// What befalls its starts, one after the other.
    fn mishaps(self) -> VecDeque<Mishap> {
        match self {
            Self::Completes | Self::Cancelled => VecDeque::from([Mishap::Failure]),
            Self::Evicted => VecDeque::from([Mishap::Eviction, Mishap::Failure]),
        }
    }

    pub(crate) fn expected(self) -> Mishaps {
        let count = |mishap| u32::try_from(self.mishaps().iter().filter(|one| **one == mishap).count()).expect("few");
        Mishaps { failures: count(Mishap::Failure), evictions: count(Mishap::Eviction) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mishap {
    /// worker-1 exits with 1.
    Failure,
    /// The pod of worker-2 is evicted.
    Eviction,
}

/// What outlives every master.
pub(crate) struct Place {
    pub(crate) spec: JobSpec,
    pub(crate) backend: FakeBackend,
    pub(crate) store: FakeStore,
    /// What the masters see of that store.
    pub(crate) seen_store: Arc<dyn JobStore>,
    pub(crate) logs: TempDir,
}

impl Place {
    /// An empty one, whose masters see its store as `seen` has it.
    pub(crate) fn new(seen: impl FnOnce(FakeStore) -> Arc<dyn JobStore>) -> Self {
        let run_policy = RunPolicy { max_restarts: BUDGET, backoff_seconds: 0, ..RunPolicy::default() };
        let request = JobRequest {
            worker_num: Some(WORKERS),
            run_policy,
            ..JobRequest::new("struck".parse().expect("a job's name"), Strategy::AllReduce)
        };
        let store = FakeStore::default();
        Self {
            spec: JobSpec::try_from(request).expect("a valid request"),
            backend: FakeBackend::new(Arrival::AtOnce),
            seen_store: seen(store.clone()),
            store,
            logs: tempfile::tempdir().expect("a folder"),
        }
    }

    pub(crate) fn replicas(&self) -> Vec<ReplicaId> {
        (0..WORKERS).map(worker).collect()
    }

    /// A master that is struck like this, with this folder for output.
    pub(crate) fn master(&self, boot_id: &str, folder: &str, strikes: Vec<Strike>) -> Arc<Master> {
        let chaos = Chaos::new(strikes);
        let context = Context {
            store: Arc::clone(&self.seen_store),
            backend: Arc::new(self.backend.clone()),
            agents: AgentClient::new(),
            agent_key: AgentKey::random(),
            boot_id: boot_id.to_owned(),
        };
        let jobs = Jobs::new(Arc::new(chaos::strike(context, &chaos)), self.logs.path().join(folder));
        let following = tokio::spawn(Arc::clone(&jobs).run()).abort_handle();
        Arc::new(Master { jobs, chaos, following })
    }

    /// How much has happened so far.
    pub(crate) async fn activity(&self) -> usize {
        let of_agents = self.backend.agents(&self.spec.name).into_values().map(|agent| agent.history().events.len());
        self.store.history().await.len() + self.backend.history().len() + of_agents.sum::<usize>()
    }

    /// Waits until the record names this holder, or will name no other.
    pub(crate) async fn held_by(&self, boot_id: &str) {
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            let now = self.store.get(&self.spec.name).await.expect("a store in memory answers");
            if now.is_none_or(|now| now.record.holder == boot_id || now.record.ended.is_some()) {
                return;
            }
        }
    }

    /// Waits until nothing has happened for a while.
    pub(crate) async fn quiet(&self) {
        let (mut ticks, mut unchanged, mut before) = (ticks(), 0, 0);
        while unchanged < 25 {
            ticks.tick().await;
            let now = self.activity().await;
            unchanged = if now == before { unchanged + 1 } else { 0 };
            before = now;
        }
    }

    /// Waits until no output is kept any more.
    pub(crate) async fn cleared(&self) {
        let mut ticks = ticks();
        while kept_output(&self.logs) > 0 {
            ticks.tick().await;
        }
    }

    /// Plays the training script in every start of the gang, for ever: a start in which all run ends by the next
    /// mishap, or well. As TensorFlow has it, one in which somebody is missing waits.
    pub(crate) async fn train(&self, scenario: Scenario) {
        let (mut mishaps, mut decided, mut ticks) = (scenario.mishaps(), BTreeSet::new(), ticks());
        loop {
            ticks.tick().await;
            let Some(generation) = self.running().filter(|generation| decided.insert(*generation)) else { continue };
            let agents = self.backend.agents(&self.spec.name);
            agents.values().for_each(|agent| agent.print(&format!("step of {generation}\n")));
            match mishaps.pop_front() {
                Some(Mishap::Eviction) => self.backend.evict(&self.spec.name, worker(2), "Evicted: low on memory"),
                Some(Mishap::Failure) => agents[&worker(1)].exit(ExitOutcome::Code(1)),
                None if scenario == Scenario::Cancelled => {}
                None => agents.values().for_each(|agent| agent.exit(ExitOutcome::Code(0))),
            }
        }
    }

    /// The start in which all run.
    fn running(&self) -> Option<Generation> {
        let statuses: Vec<_> = self.backend.agents(&self.spec.name).values().map(|agent| agent.status()).collect();
        let generation = statuses.first()?.generation?;
        let runs = statuses.iter().all(|one| one.state == RunState::Running && one.generation == Some(generation));
        (runs && statuses.len() == self.replicas().len()).then_some(generation)
    }
}

/// One start of the master's program.
pub(crate) struct Master {
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) chaos: Arc<Chaos>,
    following: AbortHandle,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Master {
    /// Ends it as a kill does, and returns when nothing of it runs.
    pub(crate) async fn die(&self) {
        self.following.abort();
        for view in self.jobs.list() {
            let Some(handle) = self.jobs.find(&view.name) else { continue };
            let mut view = handle.view;
            // A driver that is gone has dropped the view's sender.
            while view.changed().await.is_ok() {}
        }
    }
}

fn worker(index: u32) -> ReplicaId {
    format!("worker-{index}").parse().expect("a replica")
}

/// How often is looked at what tells of no change.
pub(crate) fn ticks() -> Interval {
    let mut ticks = interval(Duration::from_millis(4));
    // After a machine's pause nothing more is known than before it.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// How much output the masters have kept: files, and folders of jobs.
pub(crate) fn kept_output(logs: &TempDir) -> usize {
    let folders = std::fs::read_dir(logs.path()).expect("it is there").flatten();
    folders.map(|folder| entries_below(&folder.path())).sum()
}

fn entries_below(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).map(|entries| entries.flatten().collect()).unwrap_or(vec![]);
    entries.iter().map(|entry| 1 + entries_below(&entry.path())).sum()
}
