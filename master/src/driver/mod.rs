//! One task per job: it alone owns the job's phase, feeds `step` what it sees, and carries out the actions.

mod act;
mod adopt;
mod replica;
mod tasks;
mod view;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::view::{JobTimes, JobView, ReplicaView};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use self::replica::{Listener, Replica};
pub use self::view::initial as initial_view;

use crate::agent_client::AgentClient;
use crate::agent_token::{AgentKey, AgentToken};
use crate::backend::{PodBackend, PodTable};
use crate::job::phase::{self, Action, JobEvent, JobPhase, Seen};
use crate::job::plan;
use crate::job::policy::Policy;
use crate::job::replica::{AgentState, Gang, Member, ReplicaPhase};
use crate::logs::JobLogs;
use crate::store::{Ended, JobStore, Stored, Wish};

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

/// What a task has to tell its driver: a replica's agent is now like this.
#[derive(Debug)]
struct Report(ReplicaId, AgentState);

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
    replicas: BTreeMap<ReplicaId, Replica>,
    times: JobTimes,
    began: Instant,
    pods: watch::Receiver<PodTable>,
    reports: mpsc::Receiver<Report>,
    reporter: mpsc::Sender<Report>,
    tasks: JoinSet<()>,
    /// What the start is at: creating pods, giving agents their environments, or telling them to run.
    start: Option<AbortOnDropHandle<()>>,
}

/// Drives a job to its end, and on to its deletion. Returns when the job is forgotten or another master's.
pub async fn drive(context: Arc<Context>, stored: Stored, wires: Wires) {
    let Some(stored) = adopt::adopt(&context, stored).await else { return };
    let first = Generation { epoch: stored.record.epoch, sequence: 1 };
    let result = stored.record.ended.as_ref().map(|ended| ended.result.clone());
    let (phase, actions) = phase::begin(first, result, Duration::ZERO);
    Driver::new(context, stored, wires, phase).run(actions).await;
}

impl Driver {
    fn new(context: Arc<Context>, stored: Stored, wires: Wires, phase: JobPhase) -> Self {
        let record = &stored.record;
        let (reporter, reports) = mpsc::channel(BACKLOG);
        let accepted = JobTimes { accepted: Some(record.accepted_at), ..JobTimes::default() };
        let token = context.agent_key.token(&record.uid);
        Self {
            agents: context.agents.with_token(&token),
            token,
            pods: context.backend.watch(&stored.key()),
            policy: Policy::of(&record.spec),
            replicas: plan::replicas(&record.spec).into_iter().map(|id| (id, Replica::new())).collect(),
            times: record.ended.as_ref().map_or(accepted, Ended::times_of_finished),
            began: Instant::now(),
            tasks: JoinSet::new(),
            start: None,
            context,
            wires,
            stored,
            phase,
            reports,
            reporter,
        }
    }

    async fn run(mut self, actions: Vec<Action>) {
        self.take_pods();
        for action in actions {
            if self.act(action).await == Next::End {
                return;
            }
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
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(failure) = ended {
                error!(job = %self.stored.name(), %failure, "a task of a driver broke");
            }
        }
        self.advance(JobEvent::Observed).await
    }

    async fn take_record(&mut self) -> Next {
        let newest = self.wires.record.borrow_and_update().clone();
        let Some(newest) = newest else {
            warn!(job = %self.stored.name(), "the record was deleted by someone else, its pods follow");
            self.delete_all_pods().await;
            return Next::End;
        };
        match newest.record.epoch.cmp(&self.stored.record.epoch) {
            // Written before this master took the job over, and heard of only now.
            Ordering::Less => return Next::GoOn,
            Ordering::Equal => self.stored = newest,
            Ordering::Greater => {
                info!(job = %newest.name(), epoch = newest.record.epoch, "another master has taken the job over");
                return Next::End;
            }
        }
        let event = self.wished();
        self.advance(event).await
    }

    /// What the record has to say.
    fn wished(&self) -> JobEvent {
        if self.stored.record.wish >= Wish::Cancel { JobEvent::CancelWished } else { JobEvent::Observed }
    }

    fn take_pods(&mut self) {
        let table = self.pods.borrow_and_update().clone();
        let is_coming_up = matches!(self.phase, JobPhase::Pending { .. } | JobPhase::Starting { .. });
        let launched = self.stored.record.launched;
        for (id, replica) in &mut self.replicas {
            let pod = table.get(id).cloned();
            if replica.seen.pod.is_some() && pod.is_none() && is_coming_up {
                replica.seen.agent = AgentState::Refused("its pod was deleted".to_owned());
            }
            replica.seen.pod = pod;
            replica.count_as_launched(launched);
            if let (AgentState::Silent, Some(addresses)) = (&replica.seen.agent, replica.seen.addresses())
                && !replica.listener.asks_at(addresses.agent)
            {
                let join = tasks::join(self.agents.clone(), *id, addresses.agent, self.reporter.clone());
                let _task = AbortOnDropHandle::new(tokio::spawn(join));
                replica.listener = Listener::OfAgent { address: addresses.agent, _task };
            }
        }
    }

    fn take_reports(&mut self, batch: Vec<Report>) {
        for Report(id, agent) in batch {
            let launched = self.stored.record.launched;
            self.replicas.entry(id).and_modify(|replica| {
                replica.is_seed_only |= agent == AgentState::SeedOnly;
                // Told to run by an earlier master, or by this one before it was replaced: not to be told again.
                let before = launched.filter(|_| agent == AgentState::SeedOnly).map(AgentState::Started);
                replica.seen.hear(before.unwrap_or(agent));
            });
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
                if self.act(action).await == Next::End {
                    return Next::End;
                }
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
        if self.is_to_be_forgotten() { self.forget().await } else { Next::GoOn }
    }

    fn is_to_be_forgotten(&self) -> bool {
        matches!(self.phase, JobPhase::Finished { .. }) && self.stored.record.wish == Wish::Delete
    }

    fn enter(&mut self, phase: JobPhase) {
        let now = now();
        let stamp = |time: &mut Option<UnixMillis>| *time = time.or(Some(now));
        match &phase {
            JobPhase::Pending { .. } | JobPhase::Releasing { .. } => {}
            JobPhase::Starting { stage: phase::StartStage::Configuring, .. } => stamp(&mut self.times.joined),
            JobPhase::Starting { stage: phase::StartStage::Launching, .. } => stamp(&mut self.times.configured),
            // A master that takes over asks the agents when that was.
            JobPhase::Running { .. } => self.times.started = self.times.started.or(self.last_start()).or(Some(now)),
            JobPhase::Stopping { .. } => {
                if matches!(self.phase, JobPhase::Starting { .. }) && self.gang().all(ReplicaPhase::was_launched) {
                    stamp(&mut self.times.started);
                }
                stamp(&mut self.times.ended);
            }
            JobPhase::Finished { .. } => {
                stamp(&mut self.times.finished);
                self.wires.logs.complete();
                self.replicas.values_mut().for_each(|replica| replica.listener = Listener::Nobody);
            }
        }
        let generation = phase.generation().map(tracing::field::display);
        info!(job = %self.stored.name(), state = %phase.state(), generation, "job moved");
        self.phase = phase;
    }

    /// When the last exec.py was started, if every agent has said when its own was.
    fn last_start(&self) -> Option<UnixMillis> {
        let starts = self.replicas.values().map(|replica| match &replica.seen.agent {
            AgentState::Status(status) => status.started_at,
            AgentState::Silent
            | AgentState::SeedOnly
            | AgentState::Configured(_)
            | AgentState::Started(_)
            | AgentState::Refused(_) => None,
        });
        starts.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn gang(&self) -> Gang {
        let current = self.phase.generation();
        let member = |(id, replica): (&ReplicaId, &Replica)| Member {
            id: *id,
            phase: ReplicaPhase::of(&replica.seen, current),
            has_live_pod: replica.seen.is_live(),
        };
        Gang::new(self.replicas.iter().map(member).collect())
    }

    /// When to look again although nothing was heard. What is overdue was acted upon, and is looked at again later.
    fn wake_at(&self) -> Option<Instant> {
        let later = Instant::now() + self.policy.release_timeout;
        if self.is_to_be_forgotten() {
            return Some(later);
        }
        let deadline = self.began + self.phase.deadline(&self.policy)?;
        Some(if deadline <= Instant::now() { later } else { deadline })
    }

    /// The replicas as they are; those of a job that has ended, as they were then.
    fn replica_views(&self) -> Vec<ReplicaView> {
        match &self.stored.record.ended {
            Some(ended) => ended.replicas.clone(),
            None => {
                let current = self.phase.generation();
                let view = |(id, replica): (&ReplicaId, &Replica)| {
                    view::of_replica(&self.stored.record, *id, &replica.seen, current)
                };
                self.replicas.iter().map(view).collect()
            }
        }
    }

    fn publish(&self) {
        let shown = view::of(&self.stored, &self.phase, self.replica_views(), &self.times);
        self.wires.view.send_if_modified(|view| view::renew(view, shown));
    }
}

/// The time by this machine's clock.
pub fn now() -> UnixMillis {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}
