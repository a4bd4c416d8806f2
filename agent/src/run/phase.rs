//! The phases of a run.
//!
//! ```text
//! Idle ──config──▶ Configured ──run──▶ Starting ──▶ Running ──stop──▶ Stopping ──mains ended──▶ Ending ──all dead──▶ Exited
//!                      │  stop: Exited, never started    └──mains ended──────────────────────────▲                     │
//!                      └◀────────────────────────────config of a newer generation─────────────────────────────────────┘
//! ```
//!
//! If one of several main processes fails, the others are killed: `Running` becomes `Stopping`.
//!
//! In messages, `Starting` is `configured`, and `Ending` is `stopping`. `Starting` may wait for the warm interpreter. A
//! message of an older generation changes nothing.

use std::time::Instant;

use protocol::agent::{ExitOutcome, ExitReport, Membership, RunState};
use protocol::code::CodeId;
use protocol::env::RANK;
use protocol::ids::{Generation, UnixMillis};
use rustix::process::Pid;

use super::processes::MainProcesses;
use crate::process::environment::EnvChanges;

/// The environment of one run, and its generation. The first prototype's protocol has no generations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The generation, if the sender named one.
    pub generation: Option<Generation>,
    /// The replica's membership in a start of the job, if the sender named it. The agent only repeats it in reports.
    pub membership: Option<Membership>,
    /// The code that must be in the working directory, if the sender named it.
    pub code: Option<CodeId>,
    /// The changes to the agent's own environment for each main process; never empty.
    pub environments: Vec<EnvChanges>,
}

impl Assignment {
    /// Whether the run has several main processes.
    pub fn has_several(&self) -> bool {
        self.environments.len() > 1
    }

    /// The rank of the main process with this index, according to its environment.
    pub fn rank(&self, index: usize) -> Option<&str> {
        let (_, rank) = self.environments.get(index)?.iter().find(|(name, _)| name.as_str() == RANK)?;
        rank.as_deref()
    }
}

/// A run that has been started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The environment with which the run was started.
    pub assignment: Assignment,
    /// Its main processes. Each leads a process group.
    pub processes: MainProcesses,
    /// The time of its start.
    pub started_at: UnixMillis,
}

/// When a run that is being stopped gets SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// The run has been sent SIGINT. Unless it ends earlier, it gets SIGTERM and then SIGKILL at these times.
    Interrupted {
        /// The time of SIGTERM.
        terminate: Instant,
        /// The time of SIGKILL.
        kill: Instant,
    },
    /// At this time, unless the run ends earlier.
    At(Instant),
    /// SIGKILL has been sent; the kernel has not reported the end yet.
    Sent,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// A stop ended it: `/stop`, the fence, or [`super::Command::EndNow`].
    Stopped,
    /// The agent received SIGTERM or SIGINT, and therefore stopped the run.
    Terminated,
    /// The run ended by itself.
    Own,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// How the process ended whose end is the run's end.
    pub outcome: ExitOutcome,
    /// The index of this process.
    pub process: usize,
    /// Why it ended.
    pub cause: EndCause,
    /// When it ended.
    pub at: UnixMillis,
}

impl RunEnd {
    /// Whether the script ended by itself and succeeded.
    pub fn is_own_success(&self) -> bool {
        self.outcome == ExitOutcome::Code(0) && self.cause == EndCause::Own
    }
}

/// The phase of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RunPhase {
    /// There is no environment yet.
    #[default]
    Idle,
    /// There is an environment and no start yet.
    Configured {
        /// The environment for a start.
        assignment: Assignment,
    },
    /// The runner starts the main processes. The start may wait for a warm interpreter. No line of the script has run.
    Starting {
        /// The environment of the start.
        assignment: Assignment,
    },
    /// A main process runs, and none has failed.
    Running {
        /// The run.
        run: Run,
    },
    /// The main processes have been sent SIGINT, SIGTERM or SIGKILL.
    Stopping {
        /// The run.
        run: Run,
        /// When it gets SIGKILL.
        kill: Kill,
        /// The request or signal that came first; [`EndCause::Own`] if one of several main processes failed.
        cause: EndCause,
    },
    /// The main processes have ended; the runner kills their descendants and reads the last output.
    Ending {
        /// The run.
        run: Run,
        /// How it ended.
        end: RunEnd,
    },
    /// No process of the run is left.
    Exited {
        /// The environment that the run had.
        assignment: Assignment,
        /// The time of its start, if it was started.
        started_at: Option<UnixMillis>,
        /// How it ended.
        report: ExitReport,
    },
}

impl RunPhase {
    /// The environment that the run has or had.
    pub fn assignment(&self) -> Option<&Assignment> {
        match self {
            Self::Idle => None,
            Self::Configured { assignment } | Self::Starting { assignment } | Self::Exited { assignment, .. } => {
                Some(assignment)
            }
            Self::Running { run } | Self::Stopping { run, .. } | Self::Ending { run, .. } => Some(&run.assignment),
        }
    }

    /// The generation of the run.
    pub fn generation(&self) -> Option<Generation> {
        self.assignment().and_then(|assignment| assignment.generation)
    }

    /// The state that messages show for this phase.
    pub fn wire_state(&self) -> RunState {
        match self {
            Self::Idle => RunState::Idle,
            Self::Configured { .. } | Self::Starting { .. } => RunState::Configured,
            Self::Running { .. } => RunState::Running,
            Self::Stopping { .. } | Self::Ending { .. } => RunState::Stopping,
            Self::Exited { .. } => RunState::Exited,
        }
    }

    /// The run, while its processes live.
    pub fn run(&self) -> Option<&Run> {
        match self {
            Self::Running { run } | Self::Stopping { run, .. } | Self::Ending { run, .. } => Some(run),
            Self::Idle | Self::Configured { .. } | Self::Starting { .. } | Self::Exited { .. } => None,
        }
    }

    /// The main processes that live.
    pub fn main_processes(&self) -> Vec<Pid> {
        self.run().map(|run| run.processes.living()).unwrap_or_default()
    }

    /// The cause to report if a main process has just ended.
    pub fn cause(&self) -> EndCause {
        if let Self::Stopping { cause, .. } = self { *cause } else { EndCause::Own }
    }

    /// Whether a run lives or can still be started, and is not being killed.
    pub fn may_go_on(&self) -> bool {
        match self {
            Self::Configured { .. }
            | Self::Starting { .. }
            | Self::Running { .. }
            | Self::Stopping { kill: Kill::At(_) | Kill::Interrupted { .. }, .. } => true,
            Self::Idle | Self::Stopping { kill: Kill::Sent, .. } | Self::Ending { .. } | Self::Exited { .. } => false,
        }
    }

    /// Whether a process of the run may be alive.
    pub fn is_active(&self) -> bool {
        match self {
            Self::Starting { .. } | Self::Running { .. } | Self::Stopping { .. } | Self::Ending { .. } => true,
            Self::Idle | Self::Configured { .. } | Self::Exited { .. } => false,
        }
    }
}
