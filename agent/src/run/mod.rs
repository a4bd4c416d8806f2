//! The run: one task owns its state, starts and ends its processes, and publishes its status.

pub mod event;
pub mod exception;
mod fence;
mod helper;
mod helpers;
pub mod memory;
mod output;
pub mod phase;
pub mod processes;
pub mod report;
pub mod runner;
pub mod shares;
mod shutdown;
mod status;
pub mod step;
pub mod unstartable;
mod usage;

use std::time::{Duration, Instant};

use protocol::agent::CodeStatus;
use protocol::ids::Generation;
use protocol::lease::Renewal;
use protocol::warm::WarmRequest;
use tokio::sync::oneshot;

use event::{Event, Reply};
pub(crate) use helper::LINE_BYTES;
use phase::Assignment;
pub(crate) use usage::with_usage;

/// A command to the runner, and the channel for its reply. The sender of a command may end before the reply comes.
#[derive(Debug)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// The channel.
    pub reply: oneshot::Sender<Reply>,
}

/// A command to the runner.
#[derive(Debug)]
pub enum Command {
    /// An event of HTTP, or the agent's own wish to finish when its linger time is over.
    Apply(Event),
    /// `POST /warm`.
    Warm(WarmRequest),
    /// `POST /config`.
    Configure {
        /// The environment.
        assignment: Assignment,
        /// The renewal that keeps the run alive; `None` if the run needs no polls.
        renewal: Option<Renewal>,
    },
    /// `POST /notice`.
    Notice {
        /// The generation of the script that gets the notice.
        generation: Generation,
        /// The line for the helper.
        line: Vec<u8>,
    },
    /// A poll that keeps the run alive.
    Renew(Renewal),
    /// The agent has this code now. The reply comes when the new status is public.
    Code(CodeStatus),
    /// The agent got SIGTERM, and gets SIGKILL after this grace. A second `Terminate` changes nothing.
    Terminate {
        /// The pod's termination grace.
        grace: Duration,
    },
    /// The agent got SIGINT. The first one is like SIGTERM. If the agent is already ending, the run is killed at once.
    Interrupt {
        /// The pod's termination grace.
        grace: Duration,
    },
    /// End at once, for this reason.
    EndNow(&'static str),
}

/// The end of an agent whose processes have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentEnd {
    /// The exit code of the agent.
    pub code: u8,
    /// The latest time at which the agent may end after SIGTERM or SIGINT.
    pub signal_deadline: Option<Instant>,
}
