//! The driver: one task for each job. Only the driver owns the job's phase. It passes its observations to `step` and
//! carries out the actions. Each part of the driver owns its own state, and knows nothing of the driver.

mod adopt;
mod balance;
mod context;
mod delivery;
mod follower;
mod holders;
mod job_code;
mod machine;
mod past;
mod pods;
mod record;
mod reports;
mod retry;
mod room;
mod shown;
mod starts;
mod step;
mod tasks;
mod timeline;
mod view_sender;
mod writing;

use std::sync::Arc;
use std::time::Duration;

use job::phase::{self, Action, JobPhase};
use job::policy::Policy;
use protocol::ids::ReplicaId;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::error;

pub use self::adopt::Tenure;
use self::balance::Balance;
use self::context::Common;
pub use self::context::{Channels, Context, Kept, StacksRequest, Staged, Staging};
use self::job_code::JobCode;
use self::machine::{Current, Machine};
use self::past::Past;
use self::pods::{Pods, ReplicaTable, Runs};
use self::record::Ledger;
use self::reports::Report;
use self::room::Room;
pub use self::shown::initial as initial_view;
use self::shown::{Scene, Shown};
use self::starts::Starts;
pub use self::timeline::TimelineOfJob;
pub use self::view_sender::{ListSeq, ViewSender};

use crate::store::{Stored, Wish};

/// Maximum number of reports that wait for the driver.
const BACKLOG: usize = 1024;

/// Maximum time to ask all agents of a job for their stacks.
pub const STACKS_LIMIT: Duration = Duration::from_secs(15);

/// Why a driver stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// This master shuts down, or the job and its record are deleted.
    End,
    /// Somebody else has deleted the record.
    Gone,
    /// Another master holds the job.
    Yield,
    /// A task panicked, so the job needs a new driver.
    Broken,
}

/// What a driver waits for, besides its pods and its turn.
struct Inbox {
    record: watch::Receiver<Option<Stored>>,
    damaged: Arc<Notify>,
    surplus: Arc<Notify>,
    stagings: mpsc::Receiver<Staging>,
    stacks: mpsc::Receiver<StacksRequest>,
    reports: mpsc::Receiver<Report>,
    tasks: JoinSet<()>,
}

struct Driver {
    machine: Machine,
    ledger: Ledger,
    replicas: ReplicaTable,
    pods: Pods,
    runs: Runs,
    code: JobCode,
    starts: Starts,
    balance: Balance,
    room: Room,
    shown: Shown,
    past: Past,
    inbox: Inbox,
}

/// Drives a job to its end, and then until its deletion.
///
/// A master keeps this future for each job, also for finished jobs. Large futures inside it are boxed: they exist only
/// while they work, and not while the driver waits for an event.
pub async fn drive(context: Arc<Context>, stored: Stored, tenure: Tenure, channels: Channels) -> Stop {
    let own = Box::pin(adopt::wait_for_another_master(&context, stored, tenure, &channels)).await;
    let Some(stored) = own else { return Stop::End };
    let stored = match Box::pin(adopt::adopt(&context, stored, tenure, &channels.view)).await {
        Ok(stored) => stored,
        Err(stop) => return stop,
    };
    match &stored.record.ended {
        // The output of an ended job does not grow, and readers open the files themselves. So do not open the files
        // here: running jobs wait for the same disk.
        Some(ended) => channels.kept.logs.find_ended(ended.generation.and(Some(stored.record.epoch))).await,
        None => channels.kept.logs.load(stored.record.epoch).await,
    }
    let (record, now) = (&stored.record, context.store.now());
    let active_time = record.active_time(now);
    let mut policy = Policy::of(&record.spec, active_time, share_of(&record.uid));
    machine::follow(&mut policy.wishes, record, (active_time, Duration::ZERO));
    let (phase, actions) = phase::begin(adopt::known(record, &policy, now), &policy, Duration::ZERO);
    Driver::new(context, stored, channels, (phase, policy)).run(actions).await
}

impl Driver {
    fn new(context: Arc<Context>, stored: Stored, channels: Channels, (phase, policy): (JobPhase, Policy)) -> Self {
        let (reporter, reports) = mpsc::channel(BACKLOG);
        let Channels { record, damaged, surplus, stagings, stacks, view, kept, seat } = channels;
        let starts = Starts::new(&stored.record, &phase, Arc::clone(&kept.timeline), context.store.now());
        let token = context.agent_key.token(&stored.record.uid);
        let agents = context.agents.with_token(&token);
        let asks = context.backend.asks(&stored.record.spec).filter(|_| stored.record.ended.is_none());
        let common = Common { job: stored.key(), agents, context: Arc::clone(&context), reporter };
        let code = JobCode::new(common.clone(), stored.record.code());
        Self {
            balance: Balance::new(common.clone()),
            replicas: ReplicaTable::new(&stored.record, Arc::clone(&kept.logs)),
            runs: Runs::new(common.clone(), Arc::clone(&kept.series), &code),
            pods: Pods::new(common, token, kept),
            code,
            starts,
            room: Room::new(seat, asks),
            shown: Shown::new(view.clone()),
            ledger: Ledger::new(context, view, stored, phase.generation()),
            machine: Machine::new(phase, policy),
            past: Past::default(),
            inbox: Inbox { record, damaged, surplus, stagings, stacks, reports, tasks: JoinSet::new() },
        }
    }

    async fn run(mut self, actions: Vec<Action>) -> Stop {
        let stop = match Box::pin(self.begin(actions)).await {
            Ok(()) => loop {
                if let Err(stop) = self.turn().await {
                    break stop;
                }
            },
            Err(stop) => stop,
        };
        if stop == Stop::Gone {
            Box::pin(self.abandon()).await;
        }
        stop
    }

    async fn begin(&mut self, actions: Vec<Action>) -> Result<(), Stop> {
        self.take_pods();
        for action in actions {
            self.act(action).await?;
        }
        self.advance().await
    }

    /// Waits for one event and handles it.
    async fn turn(&mut self) -> Result<(), Stop> {
        let mut batch = Vec::new();
        let (wake, rest) = (self.wake_at(), self.machine.rests_until());
        let Inbox { record, damaged, surplus, stagings, stacks, reports, tasks } = &mut self.inbox;
        tokio::select! {
            changed = record.changed() => match changed {
                Ok(()) => return Box::pin(self.take_record()).await,
                // The registry has ended, because this master shuts down.
                Err(_) => return Err(Stop::End),
            },
            () = damaged.notified() => return Box::pin(self.ledger.mend()).await,
            () = self.room.changed(), if self.room.is_needed() => {}
            () = self.past.kept(), if self.past.is_underway() => {}
            () = surplus.notified() => self.machine.forget_at(Some(Instant::now())),
            Some(staging) = stagings.recv() => {
                self.code.stage(staging, self.replicas.answering(), tasks);
                return Ok(());
            }
            Some(mut request) = stacks.recv() => {
                let stacks = self.runs.stacks(&self.replicas, self.machine.horizon(), STACKS_LIMIT);
                tasks.spawn(async move {
                    tokio::select! {
                        stacks = stacks => drop(request.send(stacks)),
                        () = request.closed() => {}
                    }
                });
                return Ok(());
            }
            // Meanwhile the events of a large gang gather.
            () = sleep_until(rest.unwrap_or_else(Instant::now)), if rest.is_some() => return Ok(()),
            changed = self.pods.changed(), if rest.is_none() => match changed {
                Ok(()) => self.take_pods(),
                Err(_) => return Err(Stop::End),
            },
            _ = reports.recv_many(&mut batch, BACKLOG), if rest.is_none() => if !self.take_reports(batch)? {
                return Ok(());
            },
            // Remove each ended task. Otherwise the number of tasks would grow with the job's age.
            Some(ended) = tasks.join_next() => return ended.map_err(|failure| {
                error!(job = %self.ledger.name(), %failure, "a task of a driver panicked");
                Stop::Broken
            }),
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
        }
        self.pods.prepare_again(&self.replicas, &mut self.inbox.tasks);
        Box::pin(self.advance()).await
    }

    async fn take_record(&mut self) -> Result<(), Stop> {
        let newest = self.inbox.record.borrow_and_update().clone().ok_or(Stop::Gone)?;
        if !self.ledger.take(newest)? {
            return Ok(());
        }
        let before = self.machine.policy().wishes.workers;
        self.machine.follow(self.ledger.get(), self.ledger.active_time());
        self.code.follow(self.ledger.get().code());
        if self.ledger.get().ended.is_none() {
            self.replicas.resize(self.ledger.get(), self.machine.policy().wishes.workers != before);
        }
        self.advance().await
    }

    fn take_pods(&mut self) {
        let has_run = self.ledger.get().newest_ended().is_some() || !self.starts.roster().is_empty();
        let current = Current { record: self.ledger.get(), machine: &self.machine };
        self.pods.take(&mut self.replicas, has_run, current, &self.code);
        self.replicas.ids().for_each(|id| self.note_replica(id));
    }

    /// Notes in the timeline what is observed of this replica now.
    fn note_replica(&self, id: ReplicaId) {
        let Some(tracked) = self.replicas.tracked(id) else { return };
        self.starts.timeline().see(id, tracked, self.machine.horizon(), self.ledger.now());
    }

    /// Handles reports. Returns whether the driver must call `step`.
    fn take_reports(&mut self, batch: Vec<Report>) -> Result<bool, Stop> {
        let current = Current { record: self.ledger.get(), machine: &self.machine };
        let phase = self.machine.phase();
        let is_progress = |report: &Report| matches!(report, Report::Progress(..));
        let is_only_progress = batch.iter().all(is_progress);
        let are_awaited = batch.iter().all(|report| is_progress(report) || pods::is_awaited(phase, report));
        for report in batch {
            match report {
                Report::Agent(subject, agent) => {
                    self.replicas.hear((subject, agent), current, &self.code);
                    self.note_replica(subject.id);
                }
                Report::Progress(subject, generation, report) => {
                    if matches!(phase, JobPhase::Running { .. }) && phase.generation() == Some(generation) {
                        let ranks = || pods::ranks(&self.replicas, current);
                        self.balance.hear((subject, &report), generation, current.record, ranks);
                    }
                }
                Report::Waits(subject, wait) => self.replicas.wait(subject, wait),
                Report::NotStopped { replica, generation, reason } if generation == phase.generation() => {
                    let (replicas, tasks) = (&mut self.replicas, &mut self.inbox.tasks);
                    self.pods.delete_unstopped(replicas, (replica, &reason), phase.horizon(), tasks);
                }
                // The report is about an earlier start, whose runs are dead.
                Report::NotStopped { .. } => {}
                Report::Broken => return Err(Stop::Broken),
            }
        }
        if !is_only_progress && (!are_awaited || !pods::awaits_others(phase, &self.replicas)) {
            return Ok(true);
        }
        self.publish(false);
        Ok(false)
    }

    /// The next time to act without an event.
    fn wake_at(&self) -> Option<Instant> {
        let is_emptied = self.is_to_be_forgotten() || self.machine.is_finished() && self.replicas.are_leaving();
        let times = [self.machine.wake_at(is_emptied), self.pods.prepare_at(&self.replicas), self.shown.publish_at()];
        times.into_iter().flatten().min()
    }

    fn is_to_be_forgotten(&self) -> bool {
        self.machine.is_over() || self.machine.is_finished() && self.ledger.get().wish == Wish::Delete
    }

    fn publish(&mut self, has_moved: bool) {
        let Self { machine, ledger, starts, replicas, code, balance, shown, room, .. } = self;
        shown.publish_in_time(has_moved, Scene { ledger, machine, starts, replicas, code, balance, turn: room.turn() });
    }
}

/// A number from 0 to 255 that differs between jobs, so that their pauses differ too.
fn share_of(uid: &str) -> u8 {
    uid.bytes().fold(0, |share: u8, byte| share.wrapping_mul(31).wrapping_add(byte))
}
