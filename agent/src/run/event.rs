//! What the state machine is told and what it answers.

use std::time::{Duration, Instant};

use protocol::agent::ExitOutcome;
use protocol::ids::{Generation, UnixMillis};
use rustix::process::Pid;

use super::environment::EnvChanges;
use super::phase::Assignment;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `POST /config`.
    Config(Assignment),
    /// `GET /run`.
    Run(Option<Generation>),
    /// `POST /stop`.
    Stop {
        /// For which generation.
        generation: Option<Generation>,
        /// From SIGTERM to SIGKILL; zero means SIGKILL at once.
        grace: Duration,
    },
    /// The agent itself is told to end.
    Terminate {
        /// As for a stop.
        grace: Duration,
    },
    /// `POST /finish`.
    Finish,
    /// The main process has been started.
    Started(Pid),
    /// It could not be, for this reason.
    StartFailed(String),
    /// The main process has ended.
    MainEnded(ExitOutcome),
    /// Everything that the run started is dead, and its output read.
    Gone {
        /// The first line of the exception that ended it.
        exception: Option<String>,
        /// The last of its stderr.
        stderr_tail: String,
        /// Why not a line of exec.py ran, if that is so.
        not_started: Option<String>,
    },
    /// Time has passed.
    Tick,
}

impl Event {
    /// The generation that the message names.
    pub(super) fn generation(&self) -> Option<Generation> {
        match self {
            Self::Config(assignment) => assignment.generation,
            Self::Run(generation) | Self::Stop { generation, .. } => *generation,
            Self::Terminate { .. }
            | Self::Finish
            | Self::Started(_)
            | Self::StartFailed(_)
            | Self::MainEnded(_)
            | Self::Gone { .. }
            | Self::Tick => None,
        }
    }
}

/// What time it is.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For deadlines.
    pub monotonic: Instant,
    /// For reports.
    pub wall: UnixMillis,
}

/// What a request is answered. For events that are no requests it is `Done`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is as was asked.
    Done,
    /// It will be.
    Underway,
    /// It will not be.
    Refused(Refusal),
}

/// Why a request changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A newer generation has been seen.
    #[error("generation {asked} is older than {newest}, the newest that this agent has seen")]
    Stale {
        /// The message's.
        asked: Generation,
        /// The newest.
        newest: Generation,
    },
    /// The generation has an environment, and it is another one.
    #[error("generation {0} was configured otherwise; a generation is configured once")]
    ConfiguredOtherwise(Generation),
    /// Something runs.
    #[error("a run is active; stop it first")]
    Active,
    /// There is nothing to start.
    #[error("nothing is configured; post the environment to /config first")]
    NothingConfigured,
    /// There is nothing to start for this generation.
    #[error("generation {0} is not configured; post its environment to /config first")]
    GenerationNotConfigured(Generation),
}

/// What the runner must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the main process and report by [`Event::Started`] or [`Event::StartFailed`].
    Start(EnvChanges),
    /// Send SIGTERM to the main process; to its process group if it is a shell.
    Terminate(Pid),
    /// Send SIGKILL to its process group.
    Kill(Pid),
    /// End the agent.
    Leave,
}
