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
    /// The main processes have been started.
    Started(Vec<Pid>),
    /// A main process could not be started, for this reason. If others were, [`Event::Started`] comes first.
    StartFailed(String),
    /// These main processes have ended. They are reaped, so their ids may belong to other processes.
    MainsEnded(Vec<(Pid, ExitOutcome)>),
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
            | Self::MainsEnded(_)
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
    /// Start a main process with each of these environments. Report by [`Event::Started`] or [`Event::StartFailed`].
    Start(Vec<EnvChanges>),
    /// Abandon the start, before any line of the script runs.
    AbandonStart,
    /// Send SIGINT to these main processes. If such a process is a shell, send it to the process group.
    Interrupt(Vec<Pid>),
    /// Send SIGTERM to these main processes. If such a process is a shell, send it to the process group.
    Terminate(Vec<Pid>),
    /// Send SIGKILL to these main processes and their process groups.
    Kill(Vec<Pid>),
    /// End the agent.
    EndAgent,
}
