//! The surroundings of one run of the crash matrix: pods and records in memory, masters with injected faults, and a
//! simulated training script.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use master::agents::client::AgentClient;
use master::agents::token::AgentKey;
use master::driver::Context;
use master::logs::{self, Archive};
use master::registry::{Jobs, KEPT_FINISHED};
use master::store::JobStore;
use master::tally::Tally;
use protocol::agent::{ExitOutcome, RunState};
use protocol::batching::Batching;
use protocol::ids::{Generation, ReplicaId};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::run_policy::{OnFailure, RunPolicy};
use tempfile::TempDir;
use testkit::chaos::{self, Chaos, Deed, Point, Strike};
use testkit::fake::FakeStore;
use testkit::fake::{Arrival, FakeAgent, FakeBackend, code_below, history_below};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::chaos::evidence::Mishaps;
use crate::chaos::voting::{GLOBAL_BATCH, Scripts};
use crate::service::delivering::keep;

/// How many workers a gang has.
const WORKERS: u32 = 3;
/// The job's `max_restarts`.
pub(crate) const BUDGET: u32 = 2;

/// What happens to the job in addition to the injected faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    /// The first start fails, the second succeeds; then the job is deleted.
    Completes,
    /// The first start fails, the second is cancelled; then the job is deleted.
    Cancelled,
    /// A pod of the first start is evicted, the second start fails, the third succeeds; then the job is deleted.
    Evicted,
    /// The first start is suspended, the second fails, the third succeeds; then the job is deleted.
    Suspended,
    /// The job brings its code. A push ends the first start. The second start fails, and the job waits for another
    /// push. The third start succeeds; then the job is deleted.
    Pushed,
    /// Like [`Self::Evicted`], in an elastic job. This job may also start with two workers.
    Elastic,
    /// The workers have unequal speeds, and the batch sizes of the first start change twice. Then this start succeeds, and
    /// the job is deleted.
    Balanced,
}

impl Scenario {
    pub(crate) const ALL: [Self; 7] =
        [Self::Completes, Self::Cancelled, Self::Suspended, Self::Pushed, Self::Evicted, Self::Elastic, Self::Balanced];

    /// Whether the scenario's job is elastic.
    pub(crate) fn is_elastic(self) -> bool {
        self == Self::Elastic
    }

    /// Whether a master may pass this point in this scenario.
    pub(crate) fn passes(self, point: Point) -> bool {
        let deed = point.deed();
        (self == Self::Pushed || !deed.is_about_code()) && (self == Self::Balanced || deed != Deed::Notify)
    }

    /// The mishaps that end the first starts, in order.
    fn mishaps(self) -> VecDeque<Mishap> {
        match self {
            Self::Completes | Self::Cancelled => VecDeque::from([Mishap::Failure]),
            Self::Suspended => VecDeque::from([Mishap::Wish, Mishap::Failure]),
            Self::Pushed => VecDeque::from([Mishap::Wish, Mishap::Halt]),
            Self::Evicted | Self::Elastic => VecDeque::from([Mishap::Eviction, Mishap::Failure]),
            Self::Balanced => VecDeque::new(),
        }
    }

    pub(crate) fn expected(self) -> Mishaps {
        let count = |mishap| {
            u32::try_from(self.mishaps().iter().filter(|one| **one == mishap).count())
                .expect("a scenario has few mishaps")
        };
        Mishaps { failures: count(Mishap::Failure), evictions: count(Mishap::Eviction) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mishap {
    /// worker-1 exits with 1.
    Failure,
    /// worker-1 exits with 1 in a job that then waits for new code. This failure is not counted.
    Halt,
    /// The pod of worker-2 is evicted.
    Eviction,
    /// The client suspends the job, or pushes new code.
    Wish,
}

/// The store, the pods and the output. They outlive every master.
pub(crate) struct Place {
    pub(crate) spec: JobSpec,
    pub(crate) backend: FakeBackend,
    pub(crate) store: FakeStore,
    /// The store as the masters see it: `store` itself or a wrapper of it.
    pub(crate) seen_store: Arc<dyn JobStore>,
    pub(crate) logs: TempDir,
    /// The code that jobs bring: a folder for each master, which its successors do not have.
    code: TempDir,
    /// Whether the script has trained in any start.
    has_trained: watch::Sender<bool>,
}

impl Place {
    /// A place without pods and records. `seen` may wrap the store for the masters.
    pub(crate) fn new(scenario: Scenario, seen: impl FnOnce(FakeStore) -> Arc<dyn JobStore>) -> Self {
        let code = tempfile::tempdir().expect("no folder");
        let is_pushed = scenario == Scenario::Pushed;
        let on_failure = if is_pushed { OnFailure::Wait } else { OnFailure::Restart };
        let run_policy = RunPolicy { max_restarts: BUDGET, backoff_seconds: 0, on_failure, ..RunPolicy::default() };
        let request = JobRequest {
            code: is_pushed.then(|| keep(&code_below(&code.path().join("client")))),
            script: is_pushed.then(|| "train.py".parse().expect("not a script")),
            worker_num: Some(WORKERS),
            worker_min: scenario.is_elastic().then_some(WORKERS - 1),
            batching: Batching {
                global_batch: (scenario == Scenario::Balanced).then_some(GLOBAL_BATCH),
                ..Batching::default()
            },
            run_policy,
            ..JobRequest::new("struck".parse().expect("not a job's name"), Strategy::AllReduce)
        };
        let store = FakeStore::default();
        Self {
            spec: JobSpec::try_from(request).expect("an invalid request"),
            backend: FakeBackend::new(Arrival::AtOnce),
            seen_store: seen(store.clone()),
            store,
            logs: tempfile::tempdir().expect("no folder"),
            code,
            has_trained: watch::Sender::new(false),
        }
    }

    pub(crate) fn replicas(&self) -> Vec<ReplicaId> {
        (0..WORKERS).map(worker).collect()
    }

    /// Starts a master that stores the output of pods in `folder`. The `strikes` hit this master.
    pub(crate) fn master(&self, boot_id: &str, folder: &str, strikes: Vec<Strike>) -> Arc<Master> {
        let chaos = Chaos::new(strikes);
        let context = Context {
            store: Arc::clone(&self.seen_store),
            backend: Arc::new(self.backend.clone()),
            agents: AgentClient::new(),
            agent_key: AgentKey::random(),
            boot_id: boot_id.to_owned(),
            code: code_below(&self.code.path().join(boot_id)),
            tally: Tally::default(),
            history: history_below(self.code.path()),
        };
        let jobs = Jobs::new(
            Arc::new(chaos::strike(context, &chaos)),
            Archive::new(self.logs.path().join(folder), logs::BUDGET),
            KEPT_FINISHED,
        );
        let following = tokio::spawn(Arc::clone(&jobs).run()).abort_handle();
        Arc::new(Master { jobs, chaos, following })
    }

    /// How many events the store, the pods and the agents have recorded so far.
    pub(crate) async fn activity(&self) -> usize {
        let of_agents = self.backend.agents(&self.spec.name).into_values().map(|agent| agent.history().events.len());
        self.store.history().await.len() + self.backend.history().len() + of_agents.sum::<usize>()
    }

    /// Waits until the record has this holder or a result, or until it is deleted.
    pub(crate) async fn held_by(&self, boot_id: &str) {
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            let now = self.store.get(&self.spec.name).await.expect("the store in memory failed");
            if now.is_none_or(|now| now.record.holder == boot_id || now.record.ended.is_some()) {
                return;
            }
        }
    }

    /// How many notices the scripts have got.
    pub(crate) fn notices(&self) -> usize {
        self.backend.agents(&self.spec.name).values().map(|agent| agent.history().notices.len()).sum()
    }

    /// Waits until the scripts have got more notices than this, or until the job has ended.
    pub(crate) async fn told_more_than(&self, before: usize) {
        let mut ticks = ticks();
        while self.notices() <= before {
            ticks.tick().await;
            let now = self.store.get(&self.spec.name).await.expect("the store in memory failed");
            if now.is_none_or(|now| now.record.ended.is_some()) {
                return;
            }
        }
    }

    /// Waits until no event has been recorded for 25 ticks.
    pub(crate) async fn quiet(&self) {
        let (mut ticks, mut unchanged, mut before) = (ticks(), 0, 0);
        while unchanged < 25 {
            ticks.tick().await;
            let now = self.activity().await;
            unchanged = if now == before { unchanged + 1 } else { 0 };
            before = now;
        }
    }

    /// Waits until the masters have removed all output.
    pub(crate) async fn cleared(&self) {
        let mut ticks = ticks();
        while kept_output(&self.logs) > 0 {
            ticks.tick().await;
        }
    }

    /// Simulates the training script in every start, forever. As in TensorFlow, training begins when all replicas run.
    /// Then the next mishap ends the start. After the last mishap, a start succeeds, or runs until the client cancels. If
    /// the job divides a batch, the scripts first vote until all changes of the sizes have happened.
    pub(crate) async fn train(&self, scenario: Scenario) {
        let (mut mishaps, mut decided, mut ticks) = (scenario.mishaps(), BTreeSet::new(), ticks());
        let mut voting: BTreeMap<Generation, Scripts> = BTreeMap::new();
        loop {
            ticks.tick().await;
            let Some(generation) = self.running().filter(|generation| !decided.contains(generation)) else { continue };
            let agents = self.backend.agents(&self.spec.name);
            if scenario == Scenario::Balanced {
                let ranks: Vec<FakeAgent> = agents.values().cloned().collect();
                let scripts = voting.entry(generation).or_insert_with(|| Scripts::begin(generation, &ranks));
                if !scripts.train(&ranks) {
                    continue;
                }
            }
            decided.insert(generation);
            agents.values().for_each(|agent| agent.print(&format!("step of {generation}\n")));
            self.has_trained.send_replace(true);
            match mishaps.pop_front() {
                Some(Mishap::Eviction) => self.backend.evict(&self.spec.name, worker(2), "Evicted: low on memory"),
                Some(Mishap::Failure | Mishap::Halt) => agents[&worker(1)].exit(ExitOutcome::Code(1)),
                Some(Mishap::Wish) => {}
                None if scenario == Scenario::Cancelled => {}
                None => agents.values().for_each(|agent| agent.exit(ExitOutcome::Code(0))),
            }
        }
    }

    /// Waits until the script has trained in any start. [`Self::train`] has then decided how this start ends.
    pub(crate) async fn trains(&self) {
        self.has_trained.subscribe().wait_for(|has_trained| *has_trained).await.expect("the sender lives in the place");
    }

    /// The generation in which all replicas run now, if any.
    fn running(&self) -> Option<Generation> {
        let statuses: Vec<_> = self.backend.agents(&self.spec.name).values().map(|agent| agent.status()).collect();
        let generation = statuses.first()?.generation?;
        let runs = statuses.iter().all(|one| one.state == RunState::Running && one.generation == Some(generation));
        (runs && statuses.len() == self.replicas().len()).then_some(generation)
    }
}

/// One simulated master process.
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
    /// Ends the master as a kill does. Returns when all its drivers have ended.
    pub(crate) async fn die(&self) {
        self.following.abort();
        for view in self.jobs.table.list() {
            let Some(handle) = self.jobs.table.find(&view.name) else { continue };
            let mut view = handle.view;
            // A driver drops the view's sender when it ends.
            while view.changed().await.is_ok() {}
        }
    }
}

fn worker(index: u32) -> ReplicaId {
    format!("worker-{index}").parse().expect("not a replica")
}

/// The poll interval for state that cannot be watched.
pub(crate) fn ticks() -> Interval {
    let mut ticks = interval(Duration::from_millis(4));
    // After a pause of the machine, a burst of missed ticks would look like a quiet period.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// How many files and folders of output the masters have not removed.
pub(crate) fn kept_output(logs: &TempDir) -> usize {
    let folders = std::fs::read_dir(logs.path()).expect("the folder of logs does not exist").flatten();
    folders.map(|folder| entries_below(&folder.path())).sum()
}

fn entries_below(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).map(|entries| entries.flatten().collect()).unwrap_or(vec![]);
    entries.iter().map(|entry| 1 + entries_below(&entry.path())).sum()
}
