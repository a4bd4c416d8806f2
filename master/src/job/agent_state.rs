//! What is known about a replica's agent: its newest answer, or why there is none.

use protocol::agent::RunStatus;
use protocol::failure::Loss;
use protocol::ids::Generation;
use protocol::lease::Standing;

/// What is known about a replica's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentState {
    /// It has not answered yet.
    Silent,
    /// It answered, and is an agent of the first prototype: it accepts only an environment and a start.
    SeedOnly,
    /// It reported this status of its run.
    Status(Box<RunStatus>),
    /// It acknowledged the environment of this generation.
    Configured(Generation),
    /// It acknowledged the start of this generation.
    Started(Generation),
    /// It failed or refused a request, or its pod was deleted or cannot be created.
    Failed(LostRun),
    /// It has not answered for its lease. This master asks it no more.
    Unreachable {
        /// The loss, for users.
        lost: LostRun,
        /// Whether its run must be dead by now.
        is_fenced: bool,
    },
}

impl AgentState {
    /// The status of its run, if the newest report is a status.
    pub fn status(&self) -> Option<&RunStatus> {
        match self {
            Self::Status(status) => Some(status),
            Self::Silent
            | Self::SeedOnly
            | Self::Configured(_)
            | Self::Started(_)
            | Self::Failed(_)
            | Self::Unreachable { .. } => None,
        }
    }

    /// Whether it failed or is unreachable.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Failed(_) | Self::Unreachable { .. } => true,
            Self::Silent | Self::SeedOnly | Self::Configured(_) | Self::Started(_) | Self::Status(_) => false,
        }
    }

    /// Whether its lease holds.
    pub fn standing(&self) -> Standing {
        match self {
            Self::Unreachable { is_fenced: true, .. } => Standing::Fenced,
            Self::Unreachable { is_fenced: false, .. } => Standing::Lapsed,
            Self::Silent
            | Self::SeedOnly
            | Self::Status(_)
            | Self::Configured(_)
            | Self::Started(_)
            | Self::Failed(_) => Standing::Held,
        }
    }

    /// Whether its newest answer is a status or an acknowledgement.
    pub fn has_answered(&self) -> bool {
        match self {
            Self::Status(_) | Self::Configured(_) | Self::Started(_) => true,
            Self::Silent | Self::SeedOnly | Self::Failed(_) | Self::Unreachable { .. } => false,
        }
    }
}

/// A run that ended without its own report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRun {
    /// Why, as text for users.
    pub reason: String,
    /// What the loss means for another start.
    pub loss: Loss,
}

/// Maximum characters of a reason. It is stored in the job's record, and any program on an agent's port can send it.
const REASON_CHARS_MAX: usize = 1024;

impl LostRun {
    fn new(reason: impl Into<String>, loss: Loss) -> Self {
        let reason: String = reason.into();
        Self { reason: reason.chars().take(REASON_CHARS_MAX).collect(), loss }
    }

    /// A loss because something broke.
    pub fn broken(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Broken)
    }

    /// A loss that would happen again in a new pod.
    pub fn hopeless(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Hopeless)
    }

    /// A loss because the cluster removed the pod.
    pub fn disrupted(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Disrupted)
    }
}
