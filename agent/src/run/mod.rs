//! The run: one task owns its state, starts and ends its processes, and tells everyone where it stands.

pub mod child;
pub mod environment;
pub mod event;
pub mod exception;
pub mod memory;
pub mod phase;
pub mod report;
pub mod shares;
mod status;
pub mod unstartable;

use std::future::pending;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use protocol::agent::{ExitOutcome, RunStatus};
use protocol::ids::UnixMillis;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep_until;
use tracing::{info, warn};

use crate::log::{Output, Stream, stderr_tail};
use crate::pump::pump;
use crate::reaper::{Children, Reaper, kill_group, terminate};
use child::{Recipe, describe_failure};
use environment::EnvChanges;
use event::{Action, Event, Now, Reply};
use memory::Memory;
use phase::{Cause, Kill, Phase, State, Step, step};
use shares::Shares;
use status::{log_change, status_of};
use unstartable::Attempt;

/// How long to wait before looking again for processes that a run has left behind. The end of each is heard of at once;
/// this is for one that was born while the others were being killed.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

/// How long the pipes may stay open when every process of the run is dead. Only someone outside the agent's family
/// could hold them, having been handed them over a socket.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// How long an agent that ends waits for processes that SIGKILL does not end at once, such as one in a read from a
/// dead disk.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// The exit code of an agent whose run had to be killed without a report: 128 and SIGKILL's number.
const KILLED: u8 = 137;

/// What the runner is asked.
#[derive(Debug)]
pub enum Command {
    /// A request by HTTP, or the wish to finish after the linger.
    Request {
        /// What is asked.
        event: Event,
        /// Where the answer goes.
        reply: oneshot::Sender<Reply>,
    },
    /// The agent is told to end, and will be killed when this time is over. Being told again changes nothing.
    Terminate {
        /// What the pod has.
        grace: Duration,
    },
    /// Nobody is left to whom the agent belongs: it is to end at once.
    Abandon,
}

/// An agent that has ended what it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The code with which it exits.
    pub code: u8,
    /// When it will be killed, if it was told to end.
    pub killed_at: Option<Instant>,
}

/// The owner of the run. It must live on the agent's main thread: see [`child::spawn`].
#[derive(Debug)]
pub struct Runner {
    recipe: Recipe,
    output: Arc<Output>,
    status: watch::Sender<RunStatus>,
    reaper: Reaper,
    memory: Memory,
    state: State,
    pumping: Pumping,
    leave: Leave,
}

/// The output of the current run.
#[derive(Debug)]
enum Pumping {
    /// Nothing to read.
    Nothing,
    /// Being read.
    Pipes {
        task: JoinHandle<()>,
        /// Where this run's part of stderr begins.
        stderr_from: u64,
        /// When it is given up; set when every process is dead.
        deadline: Option<Instant>,
    },
    /// Read to its end.
    Drained { stderr_from: u64 },
}

/// Whether the agent is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    No,
    /// It was told to: as soon as nothing runs, and at this time at the latest.
    Terminated(Instant),
    /// Nobody is left: likewise.
    Abandoned(Instant),
    Now,
}

impl Runner {
    /// A runner of `recipe` that has nothing to run yet, and the news of its status.
    pub fn new(
        recipe: Recipe,
        output: Arc<Output>,
        reaper: Reaper,
        memory: Memory,
        boot_id: String,
    ) -> (Self, watch::Receiver<RunStatus>) {
        let state = State::new();
        let (status, news) = watch::channel(RunStatus { seq: 1, ..status_of(&state.phase, boot_id) });
        (Self { recipe, output, status, reaper, memory, state, pumping: Pumping::Nothing, leave: Leave::No }, news)
    }

    /// Serves `commands` until the agent is to end; nothing that it started is alive then.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) -> Left {
        while !self.may_leave() {
            let alarm = self.alarm();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => self.leave = Leave::Now,
                },
                () = self.reaper.child_ended() => {}
                () = drained(&mut self.pumping) => self.pumping = self.pumping.drained(),
                () = until(alarm) => {}
            }
            self.look_around();
        }
        self.leave_nothing_behind().await;
        let code = if self.state.phase.is_active() { KILLED } else { self.state.exit_code };
        let killed_at = if let Leave::Terminated(deadline) = self.leave { Some(deadline) } else { None };
        Left { code, killed_at }
    }

    /// Carries out what was asked.
    fn obey(&mut self, command: Command) {
        match command {
            Command::Request { event, reply } => {
                let answer = self.happen(event);
                // Who asked may have gone; it was done all the same.
                let _ = reply.send(answer);
            }
            Command::Terminate { grace } => self.terminate(grace),
            Command::Abandon => {
                info!("nobody is left");
                self.happen(Event::Stop { generation: None, grace: Duration::ZERO });
                self.leave = self.leave.abandoned(Instant::now() + LEAVE_LIMIT);
            }
        }
    }

    fn terminate(&mut self, grace: Duration) {
        if self.leave == Leave::No {
            info!(grace_seconds = grace.as_secs(), "told to end");
            let shares = Shares::of(grace);
            self.happen(Event::Terminate { grace: shares.run });
            self.leave = Leave::Terminated(Instant::now() + shares.agent);
        }
    }

    /// Finds out what has happened by itself: ended processes, deadlines, the end of the output.
    fn look_around(&mut self) {
        let reaped = self.reaper.reap(self.state.phase.main_process());
        if let Some(outcome) = reaped.main {
            let outcome = self.memory.explain(outcome, self.state.phase.cause());
            self.happen(Event::MainEnded(outcome));
        }
        self.happen(Event::Tick);
        let Phase::Ending { run, outcome, cause, ended_at } = &self.state.phase else { return };
        if reaped.children == Children::Some {
            self.reaper.kill_children();
        } else if let Some(stderr_from) = self.pumping.finish(Instant::now()) {
            let stderr = self.output.stderr_from(stderr_from);
            let tail = stderr_tail(&stderr);
            let lasted = Duration::from_millis(ended_at.0.saturating_sub(run.started_at.0));
            let attempt = Attempt { command: &self.recipe.command, outcome, stderr: &tail, lasted };
            let not_started = if *cause == Cause::Own { attempt.why_nothing_ran() } else { None };
            let has_failed = matches!(outcome, ExitOutcome::Code(1..));
            let exception = if has_failed { exception::first_line(&String::from_utf8_lossy(&stderr)) } else { None };
            self.happen(Event::Gone { exception, stderr_tail: tail, not_started });
        }
    }

    /// Moves the state, does what follows from it, and says so. The only place where any of this happens.
    fn happen(&mut self, event: Event) -> Reply {
        let Step { state, reply, action } = step(mem::take(&mut self.state), event, now());
        self.state = state;
        match action {
            Some(Action::Start(changes)) => self.start(&changes),
            Some(Action::Terminate(pid)) => terminate(pid),
            Some(Action::Kill(pid)) => kill_group(pid),
            Some(Action::Leave) => self.leave = Leave::Now,
            None => {}
        }
        self.publish();
        reply
    }

    /// Starts the main process.
    fn start(&mut self, changes: &EnvChanges) {
        let stderr_from = self.output.log(Stream::Stderr).end();
        self.memory.begin();
        let event = match child::spawn(&self.recipe, changes) {
            Ok(child) => {
                let task = tokio::spawn(pump(child.stdout, child.stderr, Arc::clone(&self.output)));
                self.pumping = Pumping::Pipes { task, stderr_from, deadline: None };
                Event::Started(child.pid)
            }
            Err(error) => Event::StartFailed(describe_failure(&self.recipe, &error)),
        };
        self.happen(event);
    }

    /// Tells everyone where the run stands, if that has changed.
    fn publish(&self) {
        self.status.send_if_modified(|status| {
            let seq = status.seq;
            let news = RunStatus { seq, ..status_of(&self.state.phase, status.boot_id.clone()) };
            if *status == news {
                return false;
            }
            *status = RunStatus { seq: seq + 1, ..news };
            log_change(status);
            true
        });
    }

    /// When to look around although nothing is heard.
    fn alarm(&self) -> Option<Instant> {
        let of_phase = match &self.state.phase {
            Phase::Stopping { kill: Kill::At(deadline), .. } => Some(*deadline),
            Phase::Ending { .. } => Some(self.pumping.deadline().unwrap_or(Instant::now() + SWEEP_INTERVAL)),
            Phase::Idle
            | Phase::Configured { .. }
            | Phase::Starting { .. }
            | Phase::Running { .. }
            | Phase::Stopping { kill: Kill::Sent, .. }
            | Phase::Exited { .. } => None,
        };
        let of_leave = match self.leave {
            Leave::Terminated(deadline) | Leave::Abandoned(deadline) => Some(deadline),
            Leave::No | Leave::Now => None,
        };
        of_phase.into_iter().chain(of_leave).min()
    }

    fn may_leave(&self) -> bool {
        match self.leave {
            Leave::No => false,
            Leave::Terminated(deadline) | Leave::Abandoned(deadline) => {
                !self.state.phase.is_active() || deadline <= Instant::now()
            }
            Leave::Now => true,
        }
    }

    /// Kills what may have become the agent's since the last run ended, or is left of one that would not end.
    async fn leave_nothing_behind(&mut self) {
        let limit = Instant::now() + LEAVE_LIMIT;
        let deadline = if let Leave::Terminated(deadline) = self.leave { deadline } else { limit };
        while self.reaper.reap(None).children == Children::Some {
            if deadline <= Instant::now() {
                warn!("processes are left that SIGKILL does not end");
                return;
            }
            self.reaper.kill_children();
            tokio::select! {
                () = self.reaper.child_ended() => {}
                () = until(Some(Instant::now() + SWEEP_INTERVAL)) => {}
            }
        }
    }
}

impl Leave {
    /// The same, nobody being left who could wait for it, and by `deadline` at the latest.
    fn abandoned(self, deadline: Instant) -> Self {
        match self {
            Self::No => Self::Abandoned(deadline),
            Self::Terminated(earlier) | Self::Abandoned(earlier) => Self::Abandoned(earlier.min(deadline)),
            Self::Now => Self::Now,
        }
    }
}

impl Pumping {
    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Pipes { deadline, .. } => *deadline,
            Self::Nothing | Self::Drained { .. } => None,
        }
    }

    /// The same, its task being done.
    fn drained(&self) -> Self {
        match self {
            Self::Pipes { stderr_from, .. } | Self::Drained { stderr_from } => {
                Self::Drained { stderr_from: *stderr_from }
            }
            Self::Nothing => Self::Nothing,
        }
    }

    /// Called when every process is dead: where this run's stderr begins, once all output is read or given up.
    fn finish(&mut self, now: Instant) -> Option<u64> {
        match self {
            Self::Nothing => Some(0),
            Self::Drained { stderr_from } => Some(*stderr_from),
            Self::Pipes { task, stderr_from, deadline } => {
                if *deadline.get_or_insert(now + DRAIN_LIMIT) > now {
                    return None;
                }
                warn!("the run's output is held open by a stranger; it is given up");
                task.abort();
                Some(*stderr_from)
            }
        }
    }
}

/// Waits until the output is read to its end; for ever if there is none.
async fn drained(pumping: &mut Pumping) {
    match pumping {
        Pumping::Pipes { task, .. } => {
            if let Err(error) = task.await {
                warn!(%error, "the reader of the output failed");
            }
        }
        Pumping::Nothing | Pumping::Drained { .. } => pending().await,
    }
}

async fn until(alarm: Option<Instant>) {
    match alarm {
        Some(alarm) => sleep_until(alarm.into()).await,
        None => pending().await,
    }
}

/// What time it is, by both clocks. A wall clock that stands before 1970 says 1970.
fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { monotonic: Instant::now(), wall: UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)) }
}
