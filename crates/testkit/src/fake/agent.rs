//! A fake agent. It answers like an agent, but starts no process. The caller decides when the agent's run ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, MutexGuard};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use master::host::clock::wall_clock;
use master::mutex::Mutex;
use protocol::agent::{
    CodeStatus, ExitOutcome, ExitReport, LastWords, MESSAGES, MESSAGES_OF_SEVERAL, RunState, RunStatus,
};
use protocol::batching::Notice;
use protocol::code::{CodeId, Manifest, Sha256};
use protocol::ids::{Generation, UnixMillis};
use protocol::lease::{ClockMillis, Fence, Renewal};
use protocol::progress::Progress;
use protocol::stacks::ProcessStacks;
use protocol::usage::Usage;
use protocol::warm::WarmRequest;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A fake agent. Clones share one agent.
#[derive(Debug, Clone)]
pub struct FakeAgent(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pub(super) status: watch::Sender<RunStatus>,
    pub(super) history: Mutex<History>,
    pub(super) output: watch::Sender<Vec<u8>>,
    /// How many of the next connections for output break before the first byte.
    pub(super) logs_to_cut: AtomicU32,
    /// Where the output begins in the replica's output, as the first master has told it.
    pub(super) log_base: watch::Sender<Option<u64>>,
    /// How long ago the output was printed.
    pub(super) age: Mutex<Duration>,
    /// How many streams of output end early.
    pub(super) logs_to_end: AtomicU32,
    /// How many status requests the agent has received.
    pub(super) polls: watch::Sender<u64>,
    /// Each status request holds a clone while it waits for news. [`FakeAgent::is_followed`] counts the clones.
    pub(super) waiting_poll: Arc<()>,
    /// Each request for output holds a clone until the output is sent.
    pub(super) waiting_reader: Arc<()>,
    /// How often [`FakeAgent::cut_polls`] has broken the status requests in progress.
    pub(super) cuts: watch::Sender<u64>,
    /// Whether all requests and answers are lost.
    pub(super) is_cut_off: watch::Sender<bool>,
    pub(super) fence: Mutex<Fence>,
    pub(super) finished: CancellationToken,
    pub(super) gone: CancellationToken,
    pub(super) stays: AtomicBool,
    /// How the agent responds to new code.
    pub(super) takes_code: watch::Sender<TakesCode>,
    pub(super) kind: AgentKind,
}

/// The kind of agent that a fake imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentKind {
    /// An agent of this product.
    Ours,
    /// An agent of this product that speaks another version of the messages.
    OtherVersion,
    /// The first prototype's agent. It has only `/config` and `/run`. Every `/run` starts a run, and the agent exits
    /// when the run ends.
    Prototype,
}

/// How a fake agent responds to new code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakesCode {
    /// The agent accepts code at once.
    AtOnce,
    /// The agent refuses all code with this answer, like an agent whose disk is full.
    Never((StatusCode, &'static str)),
    /// The agent does not answer a manifest, like an agent whose node is dead.
    StallsAtOffer,
    /// The agent answers a manifest but not the blobs after it, like an agent with a slow disk.
    StallsAtBlobs,
}

/// The requests that an agent has received, and their effects.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Each environment, with its generation.
    pub configs: Vec<(Generation, Value)>,
    /// Each notice to the script, with the generation of its start.
    pub notices: Vec<(Generation, Notice)>,
    /// Each request for a warm interpreter.
    pub warmed: Vec<WarmRequest>,
    /// How often code was offered and accepted.
    pub offers: u32,
    /// How often a master has asked for the code that the agent has.
    pub reads: u32,
    /// The received blobs, in the order of arrival.
    pub blobs: Vec<Sha256>,
    /// The manifest of the code that was offered last.
    pub(super) manifest: Option<Manifest>,
    /// What the agent sends if a master asks for its code.
    pub(super) held: Option<Vec<u8>>,
    /// When each environment was acknowledged.
    pub configured_at: Vec<Instant>,
    /// When each run was started.
    pub starts: Vec<Instant>,
    /// The length of the output of the runs that have ended, in bytes.
    pub(super) printed: usize,
    /// The grace period of each stop request that took effect.
    pub stops: Vec<Duration>,
    /// The effects, in order.
    pub events: Vec<(Instant, AgentEvent)>,
    /// The newest generation in a request. Requests with older generations change nothing.
    newest: Option<Generation>,
    /// The answer to requests for stacks.
    pub(super) processes: Vec<ProcessStacks>,
    /// The agent's answer to every environment, if it refuses environments.
    pub(super) refusal: Option<(StatusCode, &'static str)>,
}

/// A change of an agent's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    /// The agent accepted this environment, for a start with this code.
    Configured(Generation, Value, Option<CodeId>),
    /// The agent started exec.py.
    Started(Generation),
    /// The agent's run ended.
    Ended {
        /// The generation of the run; `None` if the agent has received none.
        generation: Option<Generation>,
        /// How the run ended.
        outcome: ExitOutcome,
        /// Whether a stop request or the fence ended the run.
        stopped: bool,
    },
    /// The agent vanished, together with its run.
    Gone,
}

impl FakeAgent {
    /// An agent without history, for this address.
    pub(super) fn new(address: SocketAddr, kind: AgentKind) -> Self {
        let messages = if kind == AgentKind::OtherVersion { MESSAGES_OF_SEVERAL + 1 } else { MESSAGES };
        let idle = RunStatus { messages, ..RunStatus::idle(address.to_string()) };
        Self(Arc::new(Shared {
            address,
            status: watch::Sender::new(idle),
            history: Mutex::default(),
            output: watch::Sender::new(vec![]),
            logs_to_cut: AtomicU32::new(0),
            log_base: watch::Sender::new(None),
            age: Mutex::default(),
            logs_to_end: AtomicU32::new(0),
            polls: watch::Sender::new(0),
            waiting_poll: Arc::default(),
            waiting_reader: Arc::default(),
            cuts: watch::Sender::new(0),
            is_cut_off: watch::Sender::new(false),
            fence: Mutex::default(),
            finished: CancellationToken::new(),
            gone: CancellationToken::new(),
            stays: AtomicBool::new(false),
            takes_code: watch::Sender::new(TakesCode::AtOnce),
            kind,
        }))
    }

    /// The address on which the agent answers.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The requests and effects so far.
    pub fn history(&self) -> History {
        self.history_mut().clone()
    }

    /// Forgets all effects, and all environments except the newest. In large gangs, environments use much memory.
    pub fn forget(&self) {
        let mut history = self.history_mut();
        let old = history.configs.len().saturating_sub(1);
        history.configs.drain(..old);
        history.configured_at.drain(..old);
        history.events.clear();
    }

    /// Locks the history. The state of the run changes only under this lock.
    pub(super) fn history_mut(&self) -> MutexGuard<'_, History> {
        self.0.history.lock()
    }

    /// Waits until the agent's run has started.
    pub async fn started(&self) {
        let mut status = self.0.status.subscribe();
        status.wait_for(|status| status.state == RunState::Running).await.expect("the sender lives in the agent");
    }

    /// Makes the agent refuse every environment with this answer, like an agent that is shutting down, or like a proxy.
    pub fn refuse_environments(&self, answer: (StatusCode, &'static str)) {
        self.history_mut().refusal = Some(answer);
    }

    /// From now on, the agent responds to new code in this way.
    pub fn take_code(&self, how: TakesCode) {
        self.0.takes_code.send_replace(how);
    }

    /// Waits while the agent stalls in this way.
    ///
    /// # Errors
    /// The refusal, if the agent refuses code.
    pub(super) async fn until_it_takes_code(&self, stall: TakesCode) -> Result<(), (StatusCode, &'static str)> {
        let mut takes = self.0.takes_code.subscribe();
        match *takes.wait_for(|takes| *takes != stall).await.expect("the sender lives in the agent") {
            TakesCode::Never(refusal) => Err(refusal),
            TakesCode::AtOnce | TakesCode::StallsAtOffer | TakesCode::StallsAtBlobs => Ok(()),
        }
    }

    /// Makes the agent send this content to masters that ask for its code.
    pub fn hold_code(&self, content: Vec<u8>) {
        self.history_mut().held = Some(content);
    }

    /// Makes the agent lose all code that it has received.
    pub fn lose_code(&self) {
        self.history_mut().blobs.clear();
        self.change(|status| status.code = CodeStatus::default());
    }

    /// Makes the agent's run print a text.
    pub fn print(&self, text: &str) {
        self.0.output.send_modify(|output| output.extend_from_slice(text.as_bytes()));
    }

    /// Waits until a master has told where the agent's output begins.
    pub async fn knows_log_base(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.log_base.subscribe().wait_for(Option::is_some).await;
    }

    /// Makes the next `times` connections for the agent's output break.
    pub fn cut_logs(&self, times: u32) {
        self.0.logs_to_cut.store(times, Ordering::Relaxed);
    }

    /// Makes the next `times` streams of the agent's output end early, as for a slow reader.
    pub fn end_logs_early(&self, times: u32) {
        self.0.logs_to_end.store(times, Ordering::Relaxed);
    }

    /// Makes the agent say that all output was printed this long ago.
    pub fn tell_age(&self, age: Duration) {
        *self.0.age.lock() = age;
    }

    /// How many status requests the agent has received.
    pub fn polls(&self) -> u64 {
        *self.0.polls.borrow()
    }

    /// Breaks every status request in progress, and waits until the agent receives another request.
    pub async fn cut_polls(&self) {
        let mut polls = self.0.polls.subscribe();
        let before = *polls.borrow_and_update();
        self.0.cuts.send_modify(|cuts| *cuts += 1);
        polls.wait_for(|polls| *polls > before).await.expect("the sender lives in the agent");
    }

    /// Whether a master waits for the agent's next status and for its output.
    pub fn is_followed(&self) -> bool {
        [&self.0.waiting_poll, &self.0.waiting_reader].into_iter().all(|waiting| Arc::strong_count(waiting) > 1)
    }

    /// Cuts the agent off from all masters, or connects the agent again. The run continues until its
    /// fence, if any, passes.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.0.is_cut_off.send_replace(is_cut_off);
    }

    pub(super) fn clock() -> ClockMillis {
        static BOOT: LazyLock<Instant> = LazyLock::new(Instant::now);
        ClockMillis(BOOT.elapsed().as_millis().try_into().expect("the milliseconds of a test fit into 64 bits"))
    }

    /// Renews the agent's fence, and ends the run when the fence has passed.
    pub(super) fn renew(&self, renewal: Renewal) {
        let mut fence = self.0.fence.lock();
        fence.renew(renewal, Self::clock());
        let until = fence.until().expect("the fence was just renewed");
        let (agent, left) = (self.clone(), until.0.saturating_sub(Self::clock().0));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(left)).await;
            let mut history = agent.history_mut();
            let has_passed = agent.0.fence.lock().has_passed(Self::clock());
            let may_live = matches!(agent.status().state, RunState::Configured | RunState::Running);
            if may_live && has_passed && !agent.0.gone.is_cancelled() {
                agent.end(&mut history, stopped(ExitOutcome::Signal(9)));
            }
        });
    }

    /// Ends the agent's run with this outcome. If the agent has no live run, changes nothing.
    pub fn exit(&self, outcome: ExitOutcome) {
        self.exit_at(outcome, wall_clock());
    }

    /// Like [`Self::exit`]. `ended_at` is the time by the agent's clock.
    pub fn exit_at(&self, outcome: ExitOutcome, ended_at: UnixMillis) {
        let mut history = self.history_mut();
        if self.status().state != RunState::Running {
            return;
        }
        self.end(&mut history, ExitReport::new(outcome, ended_at));
        if self.0.kind == AgentKind::Prototype {
            self.0.finished.cancel();
        }
    }

    /// Ends the agent's run as a stop request does.
    pub fn end_as_stopped(&self) {
        self.end(&mut self.history_mut(), stopped(ExitOutcome::Signal(15)));
    }

    /// Makes the script report this progress with the helper muster.py.
    pub fn report(&self, progress: Progress) {
        self.change(|status| status.helper = Some(progress));
    }

    /// Makes the agent answer requests for stacks with these processes.
    pub fn show_stacks(&self, processes: Vec<ProcessStacks>) {
        self.history_mut().processes = processes;
    }

    /// Makes the agent report this usage of its run.
    pub fn tell_usage(&self, usage: Usage) {
        self.change(|status| status.usage = Some(usage));
    }

    /// The status of the agent's run.
    pub fn status(&self) -> RunStatus {
        self.0.status.borrow().clone()
    }

    /// The termination message of a prototype's agent whose run has ended.
    pub(super) fn last_words(&self) -> Option<LastWords> {
        let exit = self.0.status.borrow().exit.clone().filter(|_| self.0.kind == AgentKind::Prototype)?;
        Some(LastWords { generation: None, exit, membership: None })
    }

    /// Whether both are clones of the same agent.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Makes the agent ignore `/finish`, like an agent on a slow node.
    pub fn stay(&self) {
        self.0.stays.store(true, Ordering::Relaxed);
    }

    pub(super) async fn finished(&self) {
        self.0.finished.cancelled().await;
    }

    /// Makes the agent unreachable, and notes that it vanished.
    pub(super) fn vanish(&self) {
        self.0.gone.cancel();
        self.history_mut().note(AgentEvent::Gone);
    }

    pub(super) fn end(&self, history: &mut History, exit: ExitReport) {
        let (outcome, stopped) = (exit.outcome.clone(), exit.stopped);
        history.printed = self.0.output.borrow().len();
        history.note(AgentEvent::Ended { generation: self.status().generation, outcome, stopped });
        self.change(|status| {
            status.state = RunState::Exited;
            status.exit = Some(exit);
        });
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut RunStatus)) {
        self.0.status.send_modify(|status| {
            change(status);
            status.seq += 1;
        });
    }
}

/// The report of a run that was stopped.
pub(super) fn stopped(outcome: ExitOutcome) -> ExitReport {
    ExitReport { stopped: true, ..ExitReport::new(outcome, wall_clock()) }
}

impl History {
    pub(super) fn note(&mut self, event: AgentEvent) {
        self.events.push((Instant::now(), event));
    }

    /// Notes the generation of a request. Returns whether an earlier request had a newer generation.
    pub(super) fn is_stale(&mut self, generation: Generation) -> bool {
        self.newest = self.newest.max(Some(generation));
        self.newest > Some(generation)
    }
}
