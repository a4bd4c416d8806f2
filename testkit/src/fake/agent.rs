//! An agent without a child: it answers as agents do, and its run ends when the test says so.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use protocol::agent::{ExitOutcome, ExitReport, LastWords, RunState, RunStatus};
use protocol::ids::{Generation, UnixMillis};
use protocol::routes;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One agent. Cloning shares it.
#[derive(Debug, Clone)]
pub struct FakeAgent(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    status: watch::Sender<RunStatus>,
    history: Mutex<History>,
    output: watch::Sender<Vec<u8>>,
    /// How many connections for output break before they bring any.
    logs_to_cut: AtomicU32,
    /// How often it was asked for its status, and how often such requests were cut off.
    polls: watch::Sender<u64>,
    cuts: watch::Sender<u64>,
    finished: CancellationToken,
    gone: CancellationToken,
    stays: AtomicBool,
    kind: AgentKind,
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
    refusal: Option<(StatusCode, &'static str)>,
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

#[derive(Debug, Deserialize)]
struct OfGeneration {
    generation: Generation,
}

#[derive(Debug, Deserialize)]
struct Poll {
    after: Option<u64>,
    wait: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Stop {
    grace: u64,
    generation: Option<Generation>,
}

/// How agents answer what comes too late, and what comes at the wrong time.
const STALE: (StatusCode, &str) = (StatusCode::PRECONDITION_FAILED, "a newer generation was seen");
const CONFLICT: (StatusCode, &str) = (StatusCode::CONFLICT, "not in this state");
const GONE: (StatusCode, &str) = (StatusCode::GONE, "its pod is gone");
const DONE: (StatusCode, &str) = (StatusCode::OK, "OK");

impl FakeAgent {
    pub(super) async fn serve(address: SocketAddr, kind: AgentKind) -> Self {
        let listener = TcpListener::bind(address).await.expect("a loopback address is free");
        let idle = RunStatus {
            seq: 1,
            boot_id: listener.local_addr().expect("it was bound").to_string(),
            state: RunState::Idle,
            generation: None,
            pid: None,
            started_at: None,
            exit: None,
        };
        let agent = Self(Arc::new(Shared {
            address: listener.local_addr().expect("it was bound"),
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
        }));
        let seed = Router::new().route(routes::AGENT_CONFIG, post(configure)).route(routes::AGENT_RUN, get(run));
        let router = match kind {
            AgentKind::Prototype => seed,
            AgentKind::Ours => seed
                .route(routes::AGENT_STATUS, get(status))
                .route(routes::AGENT_LOGS, get(logs))
                .route(routes::AGENT_STOP, post(stop))
                .route(routes::AGENT_FINISH, post(finish)),
        };
        let router = router.with_state(agent.clone());
        let gone = agent.0.gone.clone();
        tokio::spawn(async move {
            tokio::select! {
                served = axum::serve(listener, router) => served,
                () = gone.cancelled() => Ok(()),
            }
        });
        agent
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
    fn history_mut(&self) -> MutexGuard<'_, History> {
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

    fn end(&self, history: &mut History, outcome: ExitOutcome, stopped: bool) {
        let ended_at = master::store::wall_clock();
        history.note(AgentEvent::Ended { generation: self.status().generation, outcome: outcome.clone(), stopped });
        let exit = ExitReport { stopped, ..ExitReport::new(outcome, ended_at) };
        self.change(|status| {
            status.state = RunState::Exited;
            status.exit = Some(exit);
        });
    }

    fn change(&self, change: impl FnOnce(&mut RunStatus)) {
        self.0.status.send_modify(|status| {
            change(status);
            status.seq += 1;
        });
    }
}

impl History {
    fn note(&mut self, event: AgentEvent) {
        self.events.push((Instant::now(), event));
    }

    /// Takes in the generation that a message names; says whether a newer one was seen.
    fn is_stale(&mut self, generation: Generation) -> bool {
        self.newest = self.newest.max(Some(generation));
        self.newest > Some(generation)
    }
}

async fn configure(
    State(agent): State<FakeAgent>,
    Query(OfGeneration { generation }): Query<OfGeneration>,
    Json(environment): Json<Value>,
) -> (StatusCode, &'static str) {
    let mut history = agent.history_mut();
    if agent.0.gone.is_cancelled() {
        return GONE;
    }
    if let Some(refusal) = history.refusal {
        return refusal;
    }
    if history.is_stale(generation) {
        return STALE;
    }
    if let Some((_, held)) = history.configs.last().filter(|(held, _)| *held == generation) {
        return if *held == environment { DONE } else { CONFLICT };
    }
    if matches!(agent.status().state, RunState::Running | RunState::Stopping) {
        return CONFLICT;
    }
    history.configs.push((generation, environment.clone()));
    history.configured_at.push(Instant::now());
    history.note(AgentEvent::Configured(generation, environment));
    agent.change(|status| {
        status.state = RunState::Configured;
        status.generation = Some(generation);
        status.exit = None;
    });
    DONE
}

async fn run(State(agent): State<FakeAgent>, Query(asked): Query<OfGeneration>) -> (StatusCode, &'static str) {
    let mut history = agent.history_mut();
    if agent.0.gone.is_cancelled() {
        return GONE;
    }
    if history.is_stale(asked.generation) {
        return STALE;
    }
    let status = agent.status();
    if status.generation != Some(asked.generation) {
        return CONFLICT;
    }
    if status.state == RunState::Configured || agent.0.kind == AgentKind::Prototype {
        history.starts.push(Instant::now());
        history.note(AgentEvent::Started(asked.generation));
        agent.change(|status| {
            status.state = RunState::Running;
            status.started_at = Some(UnixMillis(1));
        });
    }
    DONE
}

async fn status(State(agent): State<FakeAgent>, Query(poll): Query<Poll>) -> Response {
    let (mut status, mut cuts) = (agent.0.status.subscribe(), agent.0.cuts.subscribe());
    agent.0.polls.send_modify(|polls| *polls += 1);
    if let Some(after) = poll.after {
        let wait = Duration::from_secs(poll.wait.unwrap_or(1));
        tokio::select! {
            // A wait that ends without a change answers with what is known.
            _ = tokio::time::timeout(wait, status.wait_for(|status| status.seq > after)) => {}
            _ = cuts.changed() => return broken().into_response(),
        }
    }
    let now = status.borrow().clone();
    Json(now).into_response()
}

/// What was printed until the run ended, in one piece.
async fn logs(State(agent): State<FakeAgent>) -> ([(HeaderName, &'static str); 1], Body) {
    let headers = [(HeaderName::from_static(routes::LOG_OFFSET_HEADER), "0")];
    let cut = |left: u32| left.checked_sub(1);
    if agent.0.logs_to_cut.fetch_update(Ordering::Relaxed, Ordering::Relaxed, cut).is_ok() {
        return (headers, broken());
    }
    let bytes = stream::once(async move {
        let mut status = agent.0.status.subscribe();
        let _ = status.wait_for(|status| status.state == RunState::Exited).await;
        Ok::<_, std::io::Error>(Bytes::from(agent.0.output.borrow().clone()))
    });
    (headers, Body::from_stream(bytes.boxed()))
}

/// A body whose connection breaks.
fn broken() -> Body {
    let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    Body::from_stream(stream::iter([Err::<Bytes, _>(error)]))
}

async fn stop(State(agent): State<FakeAgent>, Query(stop): Query<Stop>) -> (StatusCode, &'static str) {
    let mut history = agent.history_mut();
    if agent.0.gone.is_cancelled() {
        return GONE;
    }
    if stop.generation.is_some_and(|generation| history.is_stale(generation)) {
        return STALE;
    }
    history.stops.push(Duration::from_secs(stop.grace));
    match agent.status().state {
        RunState::Running | RunState::Stopping => agent.end(&mut history, ExitOutcome::Signal(9), true),
        RunState::Configured => {
            agent.end(&mut history, ExitOutcome::NotStarted("stopped before it started".to_owned()), true);
        }
        RunState::Idle | RunState::Exited => return DONE,
    }
    (StatusCode::ACCEPTED, "OK")
}

async fn finish(State(agent): State<FakeAgent>) -> (StatusCode, &'static str) {
    let _history = agent.history_mut();
    if matches!(agent.status().state, RunState::Running | RunState::Stopping) {
        return CONFLICT;
    }
    if !agent.0.stays.load(Ordering::Relaxed) {
        agent.0.finished.cancel();
    }
    DONE
}
