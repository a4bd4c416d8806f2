//! What is known of each replica: what its back end says of its pod, and what its agent says; never stored.

use std::net::SocketAddr;

use protocol::agent::{LastWords, RunState, RunStatus};
use protocol::failure::Loss;
use protocol::ids::Generation;

/// A pod, as its back end sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodState {
    /// It has no address yet, for this reason where one is known.
    Pending {
        /// In the back end's words.
        reason: Option<String>,
    },
    /// Its agent can be talked to, or will soon.
    Running(Addresses),
    /// It is still there and may still use something, but it will not run exec.py, or not any more, for this reason.
    Unusable {
        /// Why not, in the back end's words.
        reason: String,
    },
    /// The cluster is taking it away. What runs in it has its grace to end.
    Leaving {
        /// In the back end's words.
        reason: String,
    },
    /// The cluster has taken it: evicted, preempted, drained, deleted. It runs nothing any more.
    Disrupted {
        /// In the back end's words.
        reason: String,
    },
    /// It has ended and runs nothing any more.
    Terminated {
        /// How its process ended, where that says how exec.py ended, and in which start, where that is known too.
        exit: Option<LastWords>,
        /// In the back end's words.
        reason: String,
    },
}

impl PodState {
    /// What it is to a job that has run before: what was there for the earlier start may soon be there again, and the
    /// cluster goes on trying.
    #[must_use]
    pub fn after_a_start(self) -> Self {
        match self {
            Self::Unusable { reason } => Self::Pending { reason: Some(reason) },
            Self::Pending { .. }
            | Self::Running(_)
            | Self::Leaving { .. }
            | Self::Disrupted { .. }
            | Self::Terminated { .. } => self,
        }
    }
}

/// Where a pod is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Its agent's HTTP.
    pub agent: SocketAddr,
    /// What exec.py's TensorFlow server shall listen on.
    pub tensorflow: SocketAddr,
}

/// What is known of a replica's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentState {
    /// It has not answered yet.
    Silent,
    /// It answered, and knows no more than to take an environment and to run: the first prototype's agent.
    SeedOnly,
    /// It answered, and said this of its run.
    Status(Box<RunStatus>),
    /// It acknowledged the environment of this generation.
    Configured(Generation),
    /// It acknowledged the start of this generation.
    Started(Generation),
    /// It answered, and not as an agent should; or its pod cannot be had.
    Failed(LostRun),
}

impl AgentState {
    /// What it said of its run, where that is the newest that is known of it.
    pub fn status(&self) -> Option<&RunStatus> {
        match self {
            Self::Status(status) => Some(status),
            Self::Silent | Self::SeedOnly | Self::Configured(_) | Self::Started(_) | Self::Failed(_) => None,
        }
    }

    /// Whether it answers as one of ours does.
    pub fn has_answered(&self) -> bool {
        match self {
            Self::Status(_) | Self::Configured(_) | Self::Started(_) => true,
            Self::Silent | Self::SeedOnly | Self::Failed(_) => false,
        }
    }
}

/// A run that is over without a report of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRun {
    /// Why, in words.
    pub reason: String,
    /// What another start would find.
    pub loss: Loss,
}

/// Most characters of a reason: it goes into the job's record, and may be whatever answers on an agent's port.
const REASON_CHARS_MAX: usize = 1024;

impl LostRun {
    fn new(reason: impl Into<String>, loss: Loss) -> Self {
        let reason: String = reason.into();
        Self { reason: reason.chars().take(REASON_CHARS_MAX).collect(), loss }
    }

    /// Something broke.
    pub fn broken(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Broken)
    }

    /// Another pod would do no better.
    pub fn hopeless(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Hopeless)
    }

    /// The cluster took the pod.
    pub fn disrupted(reason: impl Into<String>) -> Self {
        Self::new(reason, Loss::Disrupted)
    }
}

/// All that is known of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Its pod; absent until the back end has heard of it, or after it was deleted.
    pub pod: Option<PodState>,
    /// Why the back end does not create its pod yet, where it said so.
    pub denied: Option<String>,
    /// Its agent.
    pub agent: AgentState,
    /// Who has it deleted, if someone has.
    pub deleted_by: DeletedBy,
}

/// Who takes a pod away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletedBy {
    /// The cluster, or someone at its controls.
    Others,
    /// This master: its loss is no cause of anything.
    ThisMaster,
}

impl Observation {
    /// Nothing is known yet.
    pub const NEW: Self = Self { pod: None, denied: None, agent: AgentState::Silent, deleted_by: DeletedBy::Others };

    /// Takes in what its agent is now known to be. Acknowledgements and statuses come in different ways: what comes late
    /// does not undo what has gone on from there.
    pub fn hear(&mut self, heard: AgentState) {
        let is_late = match (&self.agent, &heard) {
            (AgentState::Status(known), AgentState::Configured(late) | AgentState::Started(late)) => {
                let has_gone_on = matches!(known.state, RunState::Running | RunState::Stopping | RunState::Exited);
                known.generation >= Some(*late) && has_gone_on
            }
            (AgentState::Configured(known), AgentState::Status(late)) => late.generation < Some(*known),
            (AgentState::Started(known), AgentState::Status(late)) => {
                let is_before_start = matches!(late.state, RunState::Idle | RunState::Configured);
                late.generation < Some(*known) || late.generation == Some(*known) && is_before_start
            }
            _ => false,
        };
        if !is_late {
            self.agent = heard;
        }
    }

    /// Its addresses, while its pod runs.
    pub fn addresses(&self) -> Option<Addresses> {
        match &self.pod {
            Some(PodState::Running(addresses)) => Some(*addresses),
            Some(
                PodState::Pending { .. }
                | PodState::Unusable { .. }
                | PodState::Leaving { .. }
                | PodState::Disrupted { .. }
                | PodState::Terminated { .. },
            )
            | None => None,
        }
    }

    /// What is left of its pod.
    pub fn presence(&self) -> Presence {
        match &self.pod {
            Some(
                PodState::Running(_) | PodState::Pending { .. } | PodState::Unusable { .. } | PodState::Leaving { .. },
            ) => Presence::Live,
            Some(PodState::Disrupted { .. } | PodState::Terminated { .. }) => Presence::Ended,
            None => Presence::Absent,
        }
    }

    /// Whether the cluster takes its pod away.
    pub fn is_leaving(&self) -> bool {
        matches!(self.pod, Some(PodState::Leaving { .. }))
    }

    /// Why it has no pod, or its pod no address, where that is known.
    pub fn waits_for(&self) -> Option<&str> {
        match &self.pod {
            Some(PodState::Pending { reason }) => reason.as_deref(),
            Some(
                PodState::Running(_)
                | PodState::Unusable { .. }
                | PodState::Leaving { .. }
                | PodState::Disrupted { .. }
                | PodState::Terminated { .. },
            ) => None,
            None => self.denied.as_deref(),
        }
    }

    /// A loss of its pod for this reason.
    pub(super) fn lost(&self, reason: &str) -> LostRun {
        match self.deleted_by {
            DeletedBy::Others => LostRun::disrupted(reason),
            DeletedBy::ThisMaster => LostRun::broken(reason),
        }
    }
}

/// What is left of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Nothing, or nothing yet.
    Absent,
    /// It exists, and may use something.
    Live,
    /// It has ended and is still listed.
    Ended,
}
