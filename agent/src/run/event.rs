//! The events of a run, the replies to requests, and the actions for the runner.

use std::time::{Duration, Instant};

use protocol::agent::{ExitOutcome, FirstSignal};
use protocol::ids::{Generation, UnixMillis};
use rustix::process::Pid;

use super::phase::Assignment;
use crate::process::environment::EnvChanges;
use crate::refusal::RequestRefusal;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `POST /config`.
    Config(Assignment),
    /// `GET /run`.
    Run(Option<Generation>),
    /// `POST /stop`.
    Stop {
        /// The generation to stop. `None` means any generation.
        generation: Option<Generation>,
        /// SIGINT with `interrupt=true`.
        first: FirstSignal,
        /// Time from the first signal to SIGKILL; zero means SIGKILL at once.
        grace: Duration,
    },
    /// `POST /notice`, for the script of this generation.
    Notice(Generation),
    /// The agent itself must end.
    Terminate {
        /// Time from SIGTERM to SIGKILL; zero means SIGKILL at once.
        grace: Duration,
    },
    /// `POST /finish`.
    Finish,
    /// The main process has been started.
    Started(Pid),
    /// The main process could not be started, for this reason.
    StartFailed(String),
    /// The main process has ended.
    MainEnded(ExitOutcome),
    /// Every process of the run has ended, and its output is read.
    AllEnded {
        /// The first line of the exception that ended the script.
        exception: Option<String>,
        /// The end of the run's stderr.
        stderr_tail: String,
        /// Why no line of exec.py ran. `None` if a line may have run.
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
            Self::Notice(generation) => Some(*generation),
            Self::Terminate { .. }
            | Self::Finish
            | Self::Started(_)
            | Self::StartFailed(_)
            | Self::MainEnded(_)
            | Self::AllEnded { .. }
            | Self::Tick => None,
        }
    }
}

/// The present time.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For deadlines.
    pub monotonic: Instant,
    /// For reports.
    pub wall: UnixMillis,
}

/// The answer to a request. Events that are not requests get `Done`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The request is fulfilled.
    Done,
    /// The request will be fulfilled.
    Underway,
    /// The request is refused.
    Refused(RequestRefusal),
}

/// An action for the runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the main process and report by [`Event::Started`] or [`Event::StartFailed`].
    Start(EnvChanges),
    /// Abandon the start, before any line of the script runs.
    AbandonStart,
    /// Send SIGINT to the main process, or to its process group if the process is a shell.
    Interrupt(Pid),
    /// Send SIGTERM to the main process, or to its process group if the process is a shell.
    Terminate(Pid),
    /// Send SIGKILL to the main process and its process group.
    Kill(Pid),
    /// End the agent.
    EndAgent,
}
