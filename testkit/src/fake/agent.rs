//! An agent without a child: it answers as agents do, and its run ends when the test says so.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use protocol::agent::{ExitOutcome, ExitReport, LastWords, RunState, RunStatus};
use protocol::ids::Generation;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One agent. Cloning shares it.
#[derive(Debug, Clone)]
pub struct FakeAgent(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pub(super) status: watch::Sender<RunStatus>,
    pub(super) history: Mutex<History>,
    pub(super) output: watch::Sender<Vec<u8>>,
    /// How many connections for output break before they bring any.
    pub(super) logs_to_cut: AtomicU32,
    /// How often it was asked for its status, and how often such requests were cut off.
    pub(super) polls: watch::Sender<u64>,
    pub(super) cuts: watch::Sender<u64>,
    pub(super) finished: CancellationToken,
    pub(super) gone: CancellationToken,
    pub(super) stays: AtomicBool,
    pub(super) kind: AgentKind,
}

/// Which agent it plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentKind {
    /// One of ours.
    Ours,
    /// The first prototype's: it knows `/config` and `/run` alone, starts its run as often as it is told to, and ends
    /// with it.
    Prototype,
}

/// What an agent was told.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Each environment, with its generation.
    pub configs: Vec<(Generation, Value)>,
    /// When each was acknowledged.
    pub configured_at: Vec<Instant>,
    /// When the run was started, for each start.
    pub starts: Vec<Instant>,
    /// The grace of each stop.
    pub stops: Vec<Duration>,
    /// What became of all that, in order.
    pub events: Vec<(Instant, AgentEvent)>,
    /// The newest generation that a message named: older ones change nothing.
    newest: Option<Generation>,
    /// What it answers to every environment, instead of taking it.
    pub(super) refusal: Option<(StatusCode, &'static str)>,
}

/// A change of an agent's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    /// It took this environment.
    Configured(Generation, Value),
    /// Its exec.py was started.
    Started(Generation),
    /// Its run ended.
    Ended {
        /// Which; none where it was never told.
        generation: Option<Generation>,
        /// How.
        outcome: ExitOutcome,
        /// Whether it had been told to stop.
        stopped: bool,
    },
    /// It is gone, and with it whatever ran.
    Gone,
}

impl FakeAgent {
    /// One that has been told nothing yet, and is to answer at this address.
    pub(super) fn new(address: SocketAddr, kind: AgentKind) -> Self {
        let idle = RunStatus {
            seq: 1,
            boot_id: address.to_string(),
            state: RunState::Idle,
            generation: None,
            pid: None,
            started_at: None,
            exit: None,
        };
        Self(Arc::new(Shared {
            address,
            status: watch::Sender::new(idle),
            history: Mutex::default(),
            output: watch::Sender::new(vec![]),
            logs_to_cut: AtomicU32::new(0),
            polls: watch::Sender::new(0),
            cuts: watch::Sender::new(0),
            finished: CancellationToken::new(),
            gone: CancellationToken::new(),
            stays: AtomicBool::new(false),
            kind,
        }))
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// What it was told so far.
    pub fn history(&self) -> History {
        self.history_mut().clone()
    }

    /// Whoever holds this is the only one that changes the agent.
    pub(super) fn history_mut(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it was told to run.
    pub async fn started(&self) {
        let mut status = self.0.status.subscribe();
        status.wait_for(|status| status.state == RunState::Running).await.expect("the sender lives in the agent");
    }

    /// Lets it answer every environment so from now on, as one does that is ending, or what stands before it.
    pub fn refuse_environments(&self, answer: (StatusCode, &'static str)) {
        self.history_mut().refusal = Some(answer);
    }

    /// Lets its run print.
    pub fn print(&self, text: &str) {
        self.0.output.send_modify(|output| output.extend_from_slice(text.as_bytes()));
    }

    /// Lets so many connections for its output break.
    pub fn cut_logs(&self, times: u32) {
        self.0.logs_to_cut.store(times, Ordering::Relaxed);
    }

    /// Lets every request for its status break that is under way, and waits until it is asked again.
    pub async fn cut_polls(&self) {
        let mut polls = self.0.polls.subscribe();
        let before = *polls.borrow_and_update();
        self.0.cuts.send_modify(|cuts| *cuts += 1);
        polls.wait_for(|polls| *polls > before).await.expect("the sender lives in the agent");
    }

    /// Lets its run end. One that has ended stays as it ended.
    pub fn exit(&self, outcome: ExitOutcome) {
        let mut history = self.history_mut();
        if self.status().state != RunState::Running {
            return;
        }
        self.end(&mut history, outcome, false);
        if self.0.kind == AgentKind::Prototype {
            self.0.finished.cancel();
        }
    }

    /// What it says of its run.
    pub fn status(&self) -> RunStatus {
        self.0.status.borrow().clone()
    }

    /// How its process ended, where that says how the run ended.
    pub(super) fn last_words(&self) -> Option<LastWords> {
        let exit = self.0.status.borrow().exit.clone().filter(|_| self.0.kind == AgentKind::Prototype)?;
        Some(LastWords { generation: None, exit })
    }

    /// Whether both are the same agent.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Does not end when it is told to finish, as one whose node is slow.
    pub fn stay(&self) {
        self.0.stays.store(true, Ordering::Relaxed);
    }

    /// Waits until it was told to finish.
    pub(super) async fn finished(&self) {
        self.0.finished.cancelled().await;
    }

    /// Answers no more.
    pub(super) fn vanish(&self) {
        self.0.gone.cancel();
        self.history_mut().note(AgentEvent::Gone);
    }

    pub(super) fn end(&self, history: &mut History, outcome: ExitOutcome, stopped: bool) {
        let ended_at = master::store::wall_clock();
        history.note(AgentEvent::Ended { generation: self.status().generation, outcome: outcome.clone(), stopped });
        let exit = ExitReport { stopped, ..ExitReport::new(outcome, ended_at) };
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

impl History {
    pub(super) fn note(&mut self, event: AgentEvent) {
        self.events.push((Instant::now(), event));
    }

    /// Takes in the generation that a message names; says whether a newer one was seen.
    pub(super) fn is_stale(&mut self, generation: Generation) -> bool {
        self.newest = self.newest.max(Some(generation));
        self.newest > Some(generation)
    }
}
