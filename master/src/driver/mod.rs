//! One task per job: it alone owns the job's phase, feeds `step` what it sees, and carries out the actions.

mod act;
mod adopt;
mod tasks;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::view::{JobTimes, JobView};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

pub use self::view::initial as initial_view;

use crate::agent_client::AgentClient;
use crate::agent_token::{AgentKey, AgentToken};
use crate::backend::{PodBackend, PodTable};
use crate::job::phase::{self, JobEvent, JobPhase, Seen};
use crate::job::plan;
use crate::job::policy::Policy;
use crate::job::replica::{AgentState, Gang, Member, Observation, PodState, ReplicaPhase};
use crate::logs::JobLogs;
use crate::store::{JobStore, Stored, Wish};

/// Reports that may wait until the driver looks.
const BACKLOG: usize = 1024;

/// What all drivers of one master share.
pub struct Context {
    /// Where records live.
    pub store: Arc<dyn JobStore>,
    /// Where pods live.
    pub backend: Arc<dyn PodBackend>,
    /// How agents are talked to; each driver adds its job's token.
    pub agents: AgentClient,
    /// What those tokens are derived from.
    pub agent_key: AgentKey,
    /// Names this start of this master as the holder of a record.
    pub boot_id: String,
}

/// What a driver is connected to.
pub struct Wires {
    /// The job's record as the store's watch last told it; `None` once it is deleted.
    pub record: watch::Receiver<Option<Stored>>,
    /// What is shown of the job.
    pub view: watch::Sender<JobView>,
    /// Where its output goes.
    pub logs: Arc<JobLogs>,
}

/// What a task has to tell its driver.
#[derive(Debug)]
enum Report {
    /// An agent is now like this.
    Agent(ReplicaId, AgentState),
    /// The back end would not create this pod.
    PodRefused(ReplicaId, String),
}

/// How a driver goes on after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    /// The job is another master's, or nobody's.
    End,
}

struct Driver {
    context: Arc<Context>,
    agents: AgentClient,
    token: AgentToken,
    wires: Wires,
    stored: Stored,
    policy: Policy,
    phase: JobPhase,
    replicas: BTreeMap<ReplicaId, Observation>,
    times: JobTimes,
    began: Instant,
    pods: watch::Receiver<PodTable>,
    reports: mpsc::Receiver<Report>,
    reporter: mpsc::Sender<Report>,
    tasks: JoinSet<()>,
    /// What the start is at: creating pods, giving agents their environments, or telling them to run.
    start: Option<AbortHandle>,
    followed: Option<Generation>,
    copies: HashMap<ReplicaId, AbortOnDropHandle<()>>,
    joining: BTreeSet<ReplicaId>,
    seed_only: BTreeSet<ReplicaId>,
    stopped: BTreeSet<ReplicaId>,
    released: BTreeSet<ReplicaId>,
}

/// Drives a job to its end, and on to its deletion. Returns when the job is forgotten or another master's.
pub async fn drive(context: Arc<Context>, stored: Stored, wires: Wires) {
    let Some(stored) = adopt::adopt(&context, stored).await else { return };
    Driver::new(context, stored, wires).run().await;
}

impl Driver {
    fn new(context: Arc<Context>, stored: Stored, wires: Wires) -> Self {
        let record = &stored.record;
        let (reporter, reports) = mpsc::channel(BACKLOG);
        let accepted = JobTimes { accepted: Some(record.accepted_at), ..JobTimes::default() };
        let (phase, _) = begin(&stored);
        let token = context.agent_key.token(&record.uid);
        Self {
            agents: context.agents.with_token(&token),
            token,
            pods: context.backend.watch(stored.name()),
            policy: Policy::of(&record.spec),
            replicas: plan::replicas(&record.spec).into_iter().map(|id| (id, Observation::NEW)).collect(),
            times: record.ended.as_ref().map_or(accepted, |ended| ended.times.clone()),
            began: Instant::now(),
            tasks: JoinSet::new(),
            start: None,
            followed: None,
            copies: HashMap::new(),
            joining: BTreeSet::new(),
            seed_only: BTreeSet::new(),
            stopped: BTreeSet::new(),
            released: BTreeSet::new(),
            context,
            wires,
            stored,
            phase,
            reports,
            reporter,
        }
    }

    async fn run(mut self) {
        self.take_pods();
        let (_, actions) = begin(&self.stored);
        for action in actions {
            self.act(action).await;
        }
        // What an earlier master stopped by its user's wish must not be taken for a failure.
        let first = self.wished();
        if self.advance(first).await == Next::End {
            return;
        }
        while self.turn().await == Next::GoOn {}
    }

    /// Waits for one thing to happen and answers to it.
    async fn turn(&mut self) -> Next {
        let mut batch = Vec::new();
        let wake = self.wake_at();
        tokio::select! {
            changed = self.wires.record.changed() => match changed {
                Ok(()) => return self.take_record().await,
                // The registry has ended, and with it this master.
                Err(_) => return Next::End,
            },
            changed = self.pods.changed() => match changed {
                Ok(()) => self.take_pods(),
                Err(_) => return Next::End,
            },
            _ = self.reports.recv_many(&mut batch, BACKLOG) => self.take_reports(batch),
            () = sleep_until(wake.unwrap_or(self.began)), if wake.is_some() => {}
        }
        // Tasks that have ended are let go, so that their number does not grow with the job's age.
        while self.tasks.try_join_next().is_some() {}
        self.advance(JobEvent::Observed).await
    }

    async fn take_record(&mut self) -> Next {
        let newest = self.wires.record.borrow_and_update().clone();
        let Some(newest) = newest else {
            warn!(job = %self.stored.name(), "the record was deleted by someone else, its pods follow");
            self.delete_pods(Duration::ZERO).await;
            return Next::End;
        };
        if newest.record.holder != self.context.boot_id {
            info!(job = %newest.name(), epoch = newest.record.epoch, "another master has taken the job over");
            return Next::End;
        }
        self.stored = newest;
        let event = self.wished();
        self.advance(event).await
    }

    /// What the record has to say.
    fn wished(&self) -> JobEvent {
        if self.stored.record.wish >= Wish::Cancel { JobEvent::CancelWished } else { JobEvent::Observed }
    }

    fn take_pods(&mut self) {
        let table = self.pods.borrow_and_update().clone();
        for (id, observation) in &mut self.replicas {
            observation.pod = table.get(id).cloned();
        }
        let came_up = self.replicas.iter().filter(|(id, observation)| {
            observation.agent == AgentState::Silent && observation.addresses().is_some() && !self.joining.contains(id)
        });
        for (id, addresses) in came_up.filter_map(|(id, seen)| Some((*id, seen.addresses()?))).collect::<Vec<_>>() {
            self.joining.insert(id);
            let (agents, reporter) = (self.agents.clone(), self.reporter.clone());
            self.tasks.spawn(tasks::join(agents, id, addresses.agent, reporter));
        }
    }

    fn take_reports(&mut self, batch: Vec<Report>) {
        for report in batch {
            match report {
                Report::Agent(id, agent) => {
                    if agent == AgentState::SeedOnly {
                        self.seed_only.insert(id);
                    }
                    self.replicas.entry(id).and_modify(|observation| observation.agent = agent);
                }
                Report::PodRefused(id, reason) => {
                    let ended = PodState::Terminated { exit: None, reason };
                    self.replicas.entry(id).and_modify(|observation| observation.pod = Some(ended));
                }
            }
        }
    }

    /// Moves the phase as far as it goes, carries out what follows, and shows the outcome.
    async fn advance(&mut self, mut event: JobEvent) -> Next {
        let before = self.phase.clone();
        loop {
            if self.pods.has_changed().unwrap_or(false) {
                self.take_pods();
            }
            let gang = self.gang();
            let seen = Seen { gang: &gang, policy: &self.policy, now: self.began.elapsed() };
            let (phase, actions) = phase::step(self.phase.clone(), event, seen);
            let has_moved = phase != self.phase;
            if has_moved {
                self.enter(phase);
            }
            for action in actions {
                self.act(action).await;
            }
            if !has_moved {
                break;
            }
            event = JobEvent::Observed;
        }
        // A thousand acknowledgements of one start are not a thousand views: it is shown at its stages.
        let is_amid_start = self.phase == before && matches!(self.phase, JobPhase::Starting { .. });
        if !is_amid_start {
            self.publish();
        }
        let is_finished = matches!(self.phase, JobPhase::Finished { .. });
        if is_finished && self.stored.record.wish == Wish::Delete { self.forget().await } else { Next::GoOn }
    }

    fn enter(&mut self, phase: JobPhase) {
        let now = now();
        let stamp = |time: &mut Option<UnixMillis>| *time = time.or(Some(now));
        match &phase {
            JobPhase::Pending { .. } | JobPhase::Releasing { .. } => {}
            JobPhase::Starting { stage: phase::StartStage::Configuring, .. } => stamp(&mut self.times.joined),
            JobPhase::Starting { stage: phase::StartStage::Launching, .. } => stamp(&mut self.times.configured),
            JobPhase::Running { .. } => stamp(&mut self.times.started),
            JobPhase::Stopping { .. } => {
                if matches!(self.phase, JobPhase::Starting { .. }) && self.gang().all(ReplicaPhase::was_launched) {
                    stamp(&mut self.times.started);
                }
                stamp(&mut self.times.ended);
            }
            JobPhase::Finished { .. } => {
                stamp(&mut self.times.finished);
                self.wires.logs.complete();
            }
        }
        let generation = phase.generation().map(tracing::field::display);
        info!(job = %self.stored.name(), state = %phase.state(), generation, "job moved");
        self.phase = phase;
    }

    fn gang(&self) -> Gang {
        let current = self.phase.generation();
        let member = |(id, observation): (&ReplicaId, &Observation)| Member {
            id: *id,
            phase: ReplicaPhase::of(observation, current),
            has_live_pod: observation.is_live(),
        };
        Gang::new(self.replicas.iter().map(member).collect())
    }

    /// When to look again although nothing was heard. What is overdue was acted upon, and is looked at again later.
    fn wake_at(&self) -> Option<Instant> {
        let deadline = self.began + self.phase.deadline(&self.policy)?;
        let is_overdue = deadline <= Instant::now();
        Some(if is_overdue { Instant::now() + self.policy.release_timeout } else { deadline })
    }

    fn publish(&self) {
        let shown = view::of(&self.stored, &self.phase, &self.replicas, &self.times);
        self.wires.view.send_if_modified(|view| view::renew(view, shown));
    }
}

fn begin(stored: &Stored) -> (JobPhase, Vec<phase::Action>) {
    let first = Generation { epoch: stored.record.epoch, sequence: 1 };
    let result = stored.record.ended.as_ref().map(|ended| ended.result.clone());
    phase::begin(first, result, Duration::ZERO)
}

/// The time by this machine's clock.
pub fn now() -> UnixMillis {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}
