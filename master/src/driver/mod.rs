//! The driver: one task for each job. Only the driver owns the job's phase. The driver passes its observations to
//! `step` and carries out the actions.

mod act;
mod adopt;
mod advance;
mod awaited;
mod context;
mod create;
mod delivery;
mod elastic;
mod follower;
mod hear;
mod holders;
mod job_code;
mod prototype;
mod record;
mod retry;
mod starts;
mod subject;
mod tasks;
mod times;
mod tracked;
mod turn;
mod view;
mod wake;
mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use job::gang::{Gang, Member};
use job::observation::{AgentState, Wait};
use job::phase::{self, Action, JobPhase};
use job::policy::Policy;
use job::turns::Turn;
use job::wait::Resources;
use protocol::failure::FailedStart;
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobTimes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::error;

pub use self::adopt::Tenure;
pub use self::context::{Channels, Context, Staged, Staging};
use self::delivery::Common;
use self::job_code::JobCode;
use self::starts::Starts;
use self::subject::Subject;
use self::tracked::Replica;
pub use self::view::initial as initial_view;

use crate::agents::client::AgentClient;
use crate::agents::token::AgentToken;
use crate::backend::PodTable;
use crate::store::{Ended, JobRecord, Stored};

/// Maximum number of reports that wait for the driver.
const BACKLOG: usize = 1024;

/// A report of a task to its driver.
#[derive(Debug)]
enum Report {
    /// A replica's agent has this state now.
    Agent(Subject, AgentState),
    /// A replica has no pod yet, or its agent is not ready yet, for this reason.
    Waits(Subject, Wait),
    /// A replica's agent does not stop its run.
    NotStopped {
        replica: ReplicaId,
        /// The start whose run was to stop. By now, the replica may have a newer start in another pod.
        generation: Option<Generation>,
        /// Why the agent does not stop the run.
        reason: String,
    },
    /// A task of the driver has panicked, so the task's work is not done.
    Broken,
}

/// What a driver does after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    /// The job no longer exists, or this master shuts down.
    End,
    /// Another master holds the job.
    Yield,
    /// A task panicked, so the job needs a new driver.
    Broken,
}

/// Why a driver ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driven {
    /// The job was deleted, or this master shuts down.
    Ended,
    /// Another master holds the job.
    Yielded,
    /// A task panicked. The job needs a new driver.
    Broken,
}

struct Driver {
    context: Arc<Context>,
    agents: AgentClient,
    token: AgentToken,
    code: JobCode,
    channels: Channels,
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
    /// The current task of the start: configuring agents, or launching runs.
    start: Option<AbortOnDropHandle<()>>,
    creations: Vec<AbortOnDropHandle<()>>,
    starts: Starts,
    /// The resources that the job's pods ask for; `None` if they need no room, or the job has finished.
    asks: Option<Resources>,
    /// Whether the gang may create pods now.
    turn: Turn,
    /// When the driver must check the job's upkeep or size again, as the time since the driver began.
    look_at: Option<Duration>,
    /// The newest start, also after its end; `None` while a gang gathers for the next start.
    current_start: Option<Generation>,
    /// The diagnosis of a failed start, until the failure is recorded or a halted job gets new code.
    failed: Option<FailedStart>,
    /// The time since each replica's last output, measured at the job's deadline. Kept until the failure is diagnosed.
    silence: BTreeMap<ReplicaId, Duration>,
    /// When the driver next renews the network policy of the job's pods.
    prepare_at: Instant,
    published_at: Instant,
    /// When to publish the next view, if something has changed since.
    publish_at: Option<Instant>,
    /// When the finished job is deleted, if it has a time to live or there are too many finished jobs.
    forget_at: Option<Instant>,
}

/// Drives a job to its end, and then until its deletion.
///
/// A master keeps this future for each job, also for finished jobs. Large futures inside it are boxed: they exist only
/// while they work, and not while the driver waits for an event.
pub async fn drive(context: Arc<Context>, stored: Stored, tenure: Tenure, channels: Channels) -> Driven {
    let own = Box::pin(adopt::wait_for_another_master(&context, stored, tenure, &channels)).await;
    let Some(stored) = own else { return Driven::Ended };
    let stored = match Box::pin(adopt::adopt(&context, stored, tenure, &channels.view)).await {
        Ok(stored) => stored,
        Err(driven) => return driven,
    };
    match &stored.record.ended {
        // Nothing is copied any more, and readers open the files themselves. Jobs that run wait for the same disk.
        Some(_) => channels.logs.find().await,
        None => channels.logs.load().await,
    }
    let (record, now) = (&stored.record, context.store.now());
    let active_time = record.active_time(now);
    let mut policy = Policy::of(&record.spec, active_time, share_of(&record.uid));
    elastic::follow(&mut policy, record, (active_time, Duration::ZERO));
    let (phase, actions) = phase::begin(adopt::known(record, &policy, now), &policy, Duration::ZERO);
    Driver::new(context, stored, channels, (phase, policy)).run(actions).await
}

impl Driver {
    fn new(context: Arc<Context>, stored: Stored, channels: Channels, (phase, policy): (JobPhase, Policy)) -> Self {
        let record = &stored.record;
        let (reporter, reports) = mpsc::channel(BACKLOG);
        let halted = record.waits_after();
        let (accepted, since) = (Some(record.accepted_at), halted.map(|halted| halted.since));
        let times = JobTimes { accepted, halted: since, ..JobTimes::default() };
        let token = context.agent_key.token(&record.uid);
        let agents = context.agents.with_token(&token);
        let common = Common {
            job: stored.name().clone(),
            agents: agents.clone(),
            context: Arc::clone(&context),
            reporter: reporter.clone(),
        };
        Self {
            code: JobCode::new(common, record.code()),
            agents,
            token,
            pods: context.backend.watch(&stored.key()),
            replicas: tracked(record).into_iter().map(|id| (id, Replica::first(record.epoch))).collect(),
            times: record.ended.as_ref().map_or(times, Ended::times_of_finished),
            began: Instant::now(),
            tasks: JoinSet::new(),
            start: None,
            creations: vec![],
            starts: Starts::new(record),
            asks: context.backend.asks(&record.spec).filter(|_| record.ended.is_none()),
            turn: Turn::Go,
            look_at: None,
            current_start: phase.generation(),
            failed: halted.map(|halted| halted.failed.clone()),
            silence: BTreeMap::new(),
            prepare_at: Instant::now() + wake::PREPARE_INTERVAL,
            published_at: Instant::now(),
            publish_at: None,
            forget_at: None,
            context,
            channels,
            stored,
            policy,
            phase,
            reports,
            reporter,
        }
    }

    async fn run(mut self, actions: Vec<Action>) -> Driven {
        self.take_pods();
        let mut next = Next::GoOn;
        for action in actions {
            if next == Next::GoOn {
                next = Box::pin(self.act(action)).await;
            }
        }
        if next == Next::GoOn {
            next = Box::pin(self.advance()).await;
        }
        loop {
            match next {
                Next::GoOn => next = self.turn().await,
                Next::End => return Driven::Ended,
                Next::Yield => return Driven::Yielded,
                Next::Broken => return Driven::Broken,
            }
        }
    }

    /// Waits for one event and handles it.
    async fn turn(&mut self) -> Next {
        let mut batch = Vec::new();
        let wake = self.wake_at();
        tokio::select! {
            changed = self.channels.record.changed() => match changed {
                Ok(()) => return Box::pin(self.take_record()).await,
                // The registry has ended, because this master shuts down.
                Err(_) => return Next::End,
            },
            () = self.channels.damaged.notified() => return Box::pin(self.mend()).await,
            () = self.channels.seat.changed_from(&self.turn), if self.asks.is_some() => {}
            () = self.channels.surplus.notified() => self.forget_at = Some(Instant::now()),
            Some(staging) = self.channels.stagings.recv() => {
                let agents = self.replicas.iter().filter_map(|(id, replica)| Some((*id, replica.agent()?)));
                self.code.stage(staging, agents, &mut self.tasks);
                return Next::GoOn;
            }
            changed = self.pods.changed() => match changed {
                Ok(()) => self.take_pods(),
                Err(_) => return Next::End,
            },
            _ = self.reports.recv_many(&mut batch, BACKLOG) => if let Some(next) = self.take_reports(batch) {
                return next;
            },
            // Remove each ended task. Otherwise the number of tasks would grow with the job's age.
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(()) => return Next::GoOn,
                Err(failure) => {
                    error!(job = %self.stored.name(), %failure, "a task of a driver panicked");
                    return Next::Broken;
                }
            },
            () = sleep_until(wake.unwrap_or(self.began)), if wake.is_some() => {}
        }
        self.prepare_again();
        Box::pin(self.advance()).await
    }

    fn gang(&self) -> Gang {
        let horizon = self.phase.horizon();
        let member = |(id, replica): (&ReplicaId, &Replica)| {
            let mut member = Member::of(*id, &replica.seen, horizon);
            member.place.create_at = replica.replacements.next_at();
            member
        };
        Gang::new(self.replicas.iter().map(member).collect(), horizon)
    }
}

/// The replicas that a new driver tracks from the beginning. If the job has ended, these are only the replicas that
/// still have pods, which the back end lists: a master may have thousands of finished jobs.
fn tracked(record: &JobRecord) -> Vec<ReplicaId> {
    if record.ended.is_some() { vec![] } else { record.replicas() }
}

/// A number from 0 to 255 that differs between jobs, so that their pauses differ too.
fn share_of(uid: &str) -> u8 {
    uid.bytes().fold(0, |share: u8, byte| share.wrapping_mul(31).wrapping_add(byte))
}
