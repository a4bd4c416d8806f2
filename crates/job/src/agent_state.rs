//! The state of a replica's agent: its newest answer, or the reason why there is no answer.

use protocol::agent::{RunStatus, messages_for};
use protocol::failure::Loss;
use protocol::ids::Generation;
use protocol::lease::Standing;

/// The state of a replica's agent, as the master has observed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentState {
    /// The agent has not answered yet.
    Silent,
    /// The agent answered and is an agent of the first prototype, which accepts only an environment and a start.
    SeedOnly,
    /// The agent reported this status of its run.
    Status(Box<RunStatus>),
    /// The agent acknowledged the environment of this generation.
    Configured(Generation),
    /// The agent acknowledged the start of this generation.
    Started(Generation),
    /// The agent failed, the agent refused a request, its pod was deleted, or its pod could not be created.
    Failed(LostRun),
    /// The agent has not answered for the length of its lease. This master no longer asks the agent for
    /// its status.
    Unreachable {
        /// The loss, for users.
        lost: LostRun,
        /// Whether the agent's run must be dead by now.
        is_fenced: bool,
    },
}

impl AgentState {
    /// The status of the agent's run, if the newest report is a status.
    pub fn status(&self) -> Option<&RunStatus> {
        if let Self::Status(status) = self { Some(status) } else { None }
    }

    /// Whether the agent failed or is unreachable.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Failed(_) | Self::Unreachable { .. } => true,
            Self::Silent | Self::SeedOnly | Self::Configured(_) | Self::Started(_) | Self::Status(_) => false,
        }
    }

    /// What the master may assume about the agent's run while the agent is silent. A failed agent is not silent, so its
    /// lease is held.
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

    /// Whether the agent's newest answer is a status or an acknowledgement.
    pub fn has_answered(&self) -> bool {
        match self {
            Self::Status(_) | Self::Configured(_) | Self::Started(_) => true,
            Self::Silent | Self::SeedOnly | Self::Failed(_) | Self::Unreachable { .. } => false,
        }
    }
}

/// A run or its pod was lost, and the agent did not report how the run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRun {
    /// Why the run was lost, as text for users.
    pub reason: String,
    /// What the loss means for another start.
    pub loss: Loss,
}

/// Maximum number of characters of a reason. The job's record contains reasons, and any program on an agent's port can
/// send a long reason.
const REASON_CHARS_MAX: usize = 1024;

impl LostRun {
    fn new(reason: impl Into<String>, loss: Loss) -> Self {
        let reason: String = reason.into();
        Self { reason: reason.chars().take(REASON_CHARS_MAX).collect(), loss }
    }

    /// The pod or its agent failed. A new pod may succeed.
    pub fn broken(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Broken)
    }

    /// A loss that would happen again in a new pod.
    pub fn hopeless(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Hopeless)
    }

    /// The loss of a replica of this many processes whose agent does not know the version of the messages that they need.
    pub fn of_other_version(status: &RunStatus, processes: u32) -> Self {
        let (needed, messages) = (messages_for(processes as usize), status.newest_messages());
        Self::hopeless(format!(
            "its agent has version {messages} of the messages, and this master has version {needed}: use an agent of \
             the master's version; if the agent is in the image, build the image again"
        ))
    }

    /// The loss of a replica with an agent of the first prototype, which does not support this job.
    pub fn of_prototype() -> Self {
        Self::hopeless(
            "its agent is the first prototype's, which can neither receive code nor take part in an elastic job or a job \
             with leases: build the image again",
        )
    }

    /// A loss that the cluster caused: the pod was removed or could not be created now, or the agent does not answer.
    pub fn disrupted(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Disrupted)
    }
}
