//! Where the run stands and what moves it: one pure function. It neither waits, starts, kills nor reads a clock;
//! the runner tells it what happened and carries out what it answers.

use std::time::{Duration, Instant};

use protocol::agent::{ExitOutcome, ExitReport, RunState};
use protocol::ids::{Generation, UnixMillis};
use rustix::process::Pid;

use super::environment::EnvChanges;
use super::event::{Action, Event, Now, Refusal, Reply};
use super::report::{exit_code, not_started, report};

/// The environment of one run, and which generation it is for; the seed protocol knows no generations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The generation, where the sender named one.
    pub generation: Option<Generation>,
    /// What to change in the agent's own environment.
    pub changes: EnvChanges,
}

/// A run that has been started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// What it was started with.
    pub assignment: Assignment,
    /// The main process, also the name of its process group.
    pub pid: Pid,
    /// When it was started.
    pub started_at: UnixMillis,
}

/// When a run that was asked to end is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// At this time, unless it has ended before.
    At(Instant),
    /// It has been killed; only the kernel's word is missing.
    Sent,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It was asked to.
    Stopped,
    /// Its agent was told to end, and asked it to.
    Terminated,
    /// By itself.
    Own,
}

/// Where the run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// No environment yet.
    Idle,
    /// An environment, and no start yet.
    Configured {
        /// What a start would take.
        assignment: Assignment,
    },
    /// The start is decided and being carried out; nobody but the runner sees this phase.
    Starting {
        /// What it takes.
        assignment: Assignment,
    },
    /// The main process runs.
    Running {
        /// Which.
        run: Run,
    },
    /// The main process was asked to end.
    Stopping {
        /// Which.
        run: Run,
        /// How long it may take.
        kill: Kill,
        /// Who asked first.
        cause: Cause,
    },
    /// The main process has ended; what it started is being killed and its last output read.
    Ending {
        /// Which.
        run: Run,
        /// How.
        outcome: ExitOutcome,
        /// Why.
        cause: Cause,
        /// When.
        ended_at: UnixMillis,
    },
    /// Nothing of the run is left but its report.
    Exited {
        /// What it had.
        assignment: Assignment,
        /// When it was started, if it was.
        started_at: Option<UnixMillis>,
        /// How it ended.
        report: ExitReport,
    },
}

impl Phase {
    /// What the run has or had for an environment.
    pub fn assignment(&self) -> Option<&Assignment> {
        match self {
            Self::Idle => None,
            Self::Configured { assignment } | Self::Starting { assignment } | Self::Exited { assignment, .. } => {
                Some(assignment)
            }
            Self::Running { run } | Self::Stopping { run, .. } | Self::Ending { run, .. } => Some(&run.assignment),
        }
    }

    /// The generation that the run is for.
    pub fn generation(&self) -> Option<Generation> {
        self.assignment().and_then(|assignment| assignment.generation)
    }

    /// The phase as the wire has it.
    pub fn wire_state(&self) -> RunState {
        match self {
            Self::Idle => RunState::Idle,
            Self::Configured { .. } | Self::Starting { .. } => RunState::Configured,
            Self::Running { .. } => RunState::Running,
            Self::Stopping { .. } | Self::Ending { .. } => RunState::Stopping,
            Self::Exited { .. } => RunState::Exited,
        }
    }

    /// The main process, until it has ended.
    pub fn main_process(&self) -> Option<Pid> {
        match self {
            Self::Running { run } | Self::Stopping { run, .. } => Some(run.pid),
            Self::Idle
            | Self::Configured { .. }
            | Self::Starting { .. }
            | Self::Ending { .. }
            | Self::Exited { .. } => None,
        }
    }

    /// Why the main process ends, should it do so now.
    pub fn cause(&self) -> Cause {
        if let Self::Stopping { cause, .. } = self { *cause } else { Cause::Own }
    }

    /// Whether something of a run may be alive.
    pub fn is_active(&self) -> bool {
        match self {
            Self::Starting { .. } | Self::Running { .. } | Self::Stopping { .. } | Self::Ending { .. } => true,
            Self::Idle | Self::Configured { .. } | Self::Exited { .. } => false,
        }
    }
}

/// What the runner owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The newest generation that any message named. Older ones change nothing any more.
    pub newest: Option<Generation>,
    /// The code with which the agent would exit now: see [`exit_code`].
    pub exit_code: u8,
    /// Where the run stands.
    pub phase: Phase,
}

impl State {
    /// An agent that has just been started.
    pub fn new() -> Self {
        Self { newest: None, exit_code: 0, phase: Phase::Idle }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// The outcome of [`step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The state from now on.
    pub state: State,
    /// For who asked.
    pub reply: Reply,
    /// For the runner.
    pub action: Option<Action>,
}

/// Moves the state.
pub fn step(state: State, event: Event, now: Now) -> Step {
    let State { newest, exit_code: code_before, phase } = state;
    if let (Some(asked), Some(newest)) = (event.generation(), newest)
        && asked < newest
    {
        let state = State { newest: Some(newest), exit_code: code_before, phase };
        return Step { state, reply: Reply::Refused(Refusal::Stale { asked, newest }), action: None };
    }
    // Also a message that is refused below fences: it shows that a newer master is at work.
    let newest = newest.max(event.generation());
    let Moved { phase, reply, action } = match event {
        Event::Config(assignment) => config(phase, assignment),
        Event::Run(generation) => run(phase, generation),
        Event::Stop { generation: _, grace } => stop(phase, grace, Cause::Stopped, now),
        Event::Terminate { grace } => stop(phase, grace, Cause::Terminated, now),
        Event::Finish if phase.is_active() => refused(phase, Refusal::Active),
        Event::Finish => Moved { phase, reply: Reply::Done, action: Some(Action::Leave) },
        Event::Started(_) | Event::StartFailed(_) | Event::MainEnded(_) | Event::Gone { .. } | Event::Tick => {
            progress(phase, event, now)
        }
    };
    let exit_code = match &phase {
        Phase::Exited { report, .. } => exit_code(report),
        Phase::Idle
        | Phase::Configured { .. }
        | Phase::Starting { .. }
        | Phase::Running { .. }
        | Phase::Stopping { .. }
        | Phase::Ending { .. } => code_before,
    };
    Step { state: State { newest, exit_code, phase }, reply, action }
}

/// A [`Step`] without what `step` itself keeps.
struct Moved {
    phase: Phase,
    reply: Reply,
    action: Option<Action>,
}

fn to(phase: Phase) -> Moved {
    Moved { phase, reply: Reply::Done, action: None }
}

fn refused(phase: Phase, refusal: Refusal) -> Moved {
    Moved { phase, reply: Reply::Refused(refusal), action: None }
}

/// One config a generation; without one, whenever nothing runs.
fn config(phase: Phase, asked: Assignment) -> Moved {
    if let (Some(generation), Some(held)) = (asked.generation, phase.assignment())
        && held.generation == Some(generation)
    {
        let same = held.changes == asked.changes;
        return if same { to(phase) } else { refused(phase, Refusal::ConfiguredOtherwise(generation)) };
    }
    match phase {
        Phase::Idle | Phase::Configured { .. } | Phase::Exited { .. } => to(Phase::Configured { assignment: asked }),
        Phase::Starting { .. } | Phase::Running { .. } | Phase::Stopping { .. } | Phase::Ending { .. } => {
            refused(phase, Refusal::Active)
        }
    }
}

/// One start a config.
fn run(phase: Phase, asked: Option<Generation>) -> Moved {
    if let Some(generation) = asked
        && phase.generation() != asked
    {
        return refused(phase, Refusal::GenerationNotConfigured(generation));
    }
    match phase {
        Phase::Idle => refused(phase, Refusal::NothingConfigured),
        Phase::Configured { assignment } => {
            let action = Some(Action::Start(assignment.changes.clone()));
            Moved { phase: Phase::Starting { assignment }, reply: Reply::Done, action }
        }
        Phase::Starting { .. }
        | Phase::Running { .. }
        | Phase::Stopping { .. }
        | Phase::Ending { .. }
        | Phase::Exited { .. } => to(phase),
    }
}

/// Ends whatever there is, whichever generation it is of: a stale request to stop has been refused before.
fn stop(phase: Phase, grace: Duration, asked: Cause, now: Now) -> Moved {
    match phase {
        Phase::Idle | Phase::Exited { .. } => to(phase),
        // A start may still be on its way; it must find that this run is over.
        Phase::Configured { assignment } => {
            let report = not_started("stopped before it started".to_owned(), asked, now);
            to(Phase::Exited { assignment, started_at: None, report })
        }
        Phase::Starting { .. } | Phase::Ending { .. } => Moved { phase, reply: Reply::Underway, action: None },
        Phase::Running { run } => {
            let (kill, action) = if grace.is_zero() {
                (Kill::Sent, Action::Kill(run.pid))
            } else {
                (Kill::At(now.monotonic + grace), Action::Terminate(run.pid))
            };
            Moved { phase: Phase::Stopping { run, kill, cause: asked }, reply: Reply::Underway, action: Some(action) }
        }
        Phase::Stopping { run, kill: Kill::At(deadline), cause } => {
            let kill = Kill::At(deadline.min(now.monotonic + grace));
            Moved { reply: Reply::Underway, ..kill_when_due(run, kill, cause, now) }
        }
        Phase::Stopping { kill: Kill::Sent, .. } => Moved { phase, reply: Reply::Underway, action: None },
    }
}

/// Kills a stopping run whose time is over.
fn kill_when_due(run: Run, kill: Kill, cause: Cause, now: Now) -> Moved {
    match kill {
        Kill::At(deadline) if deadline <= now.monotonic => {
            let action = Some(Action::Kill(run.pid));
            Moved { phase: Phase::Stopping { run, kill: Kill::Sent, cause }, reply: Reply::Done, action }
        }
        Kill::At(_) | Kill::Sent => to(Phase::Stopping { run, kill, cause }),
    }
}

/// What the runner reports. An event that does not fit the phase is late and changes nothing.
fn progress(phase: Phase, event: Event, now: Now) -> Moved {
    match (phase, event) {
        (Phase::Starting { assignment }, Event::Started(pid)) => {
            to(Phase::Running { run: Run { assignment, pid, started_at: now.wall } })
        }
        (Phase::Starting { assignment }, Event::StartFailed(reason)) => {
            to(Phase::Exited { assignment, started_at: None, report: not_started(reason, Cause::Own, now) })
        }
        (Phase::Running { run }, Event::MainEnded(outcome)) => {
            to(Phase::Ending { run, outcome, cause: Cause::Own, ended_at: now.wall })
        }
        (Phase::Stopping { run, cause, .. }, Event::MainEnded(outcome)) => {
            to(Phase::Ending { run, outcome, cause, ended_at: now.wall })
        }
        (Phase::Stopping { run, kill, cause }, Event::Tick) => kill_when_due(run, kill, cause, now),
        (Phase::Ending { run, outcome, cause, ended_at }, Event::Gone { exception, stderr_tail, not_started }) => {
            let outcome = not_started.map_or(outcome, ExitOutcome::NotStarted);
            let report = ExitReport { exception, stderr_tail, ..report(outcome, cause, ended_at) }.bounded();
            to(Phase::Exited { assignment: run.assignment, started_at: Some(run.started_at), report })
        }
        (
            phase @ (Phase::Idle
            | Phase::Configured { .. }
            | Phase::Starting { .. }
            | Phase::Running { .. }
            | Phase::Stopping { .. }
            | Phase::Ending { .. }
            | Phase::Exited { .. }),
            Event::Config(_)
            | Event::Run(_)
            | Event::Stop { .. }
            | Event::Terminate { .. }
            | Event::Finish
            | Event::Started(_)
            | Event::StartFailed(_)
            | Event::MainEnded(_)
            | Event::Gone { .. }
            | Event::Tick,
        ) => to(phase),
    }
}
