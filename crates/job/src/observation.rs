//! Observations of each replica: its pod's state from the back end, and its agent's answers. No record contains
//! observations.

use std::net::SocketAddr;
use std::sync::Arc;

use protocol::agent::{LastWords, Membership, RunState};
use protocol::ids::Generation;

pub use super::agent_state::{AgentState, LostRun};
pub use super::wait::Wait;

/// A replica's pod, as its back end lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Distinguishes this pod from the replica's other pods.
    pub incarnation: Incarnation,
    /// The state of the pod.
    pub state: PodState,
}

impl Pod {
    /// Whether the agent and everything that it started have ended. The back end may still list the pod, and other
    /// containers of the pod may still run ([`Others::Running`]).
    pub fn has_ended(&self) -> bool {
        matches!(self.state, PodState::Terminated { .. } | PodState::Disrupted { .. })
    }
}

/// Distinguishes a pod from all earlier and later pods of the same replica. In Kubernetes it is the pod's uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation(Arc<str>);

impl From<String> for Incarnation {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

/// The state of a pod, as its back end reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodState {
    /// The pod has no address yet.
    Pending {
        /// Whether the pod has a node. The node may still prepare the pod.
        has_node: bool,
        /// The back end's reason, if it reports one.
        wait: Option<Wait>,
    },
    /// The pod has addresses. Its agent answers now or soon.
    Running(Addresses),
    /// The pod still exists and may use resources, but exec.py cannot run in it, or can no longer run in it.
    Unusable {
        /// The back end's reason.
        reason: String,
    },
    /// The pod is being evicted or deleted. The pod's processes have a grace period to end.
    Leaving {
        /// The back end's reason.
        reason: String,
    },
    /// The cluster evicted, preempted, drained or deleted the pod. The agent and everything that it started have ended.
    Disrupted {
        /// The back end's reason.
        reason: String,
        /// The pod's other containers.
        others: Others,
    },
    /// The agent and everything that it started have ended.
    Terminated {
        /// How exec.py ended and in which start, if the agent left a last message.
        exit: Option<LastWords>,
        /// The back end's reason.
        reason: String,
        /// The pod's other containers.
        others: Others,
    },
}

/// The containers of a pod, without the agent's container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// All have ended, or there are none.
    Ended,
    /// At least one may still run.
    Running,
}

impl PodState {
    /// The state of a pod in which no process runs any more.
    pub fn ended(exit: Option<LastWords>, reason: impl Into<String>) -> Self {
        Self::Terminated { exit, reason: reason.into(), others: Others::Ended }
    }

    /// The state of a pod that the cluster removed, and in which no process runs any more.
    pub fn disrupted(reason: impl Into<String>) -> Self {
        Self::Disrupted { reason: reason.into(), others: Others::Ended }
    }

    /// The state as a job treats it after the job's first start. From then on, an unusable pod counts as pending: what
    /// the pod lacks was available before, and the cluster keeps trying.
    #[must_use]
    pub fn after_a_start(self) -> Self {
        let Self::Unusable { reason } = self else { return self };
        Self::Pending { has_node: true, wait: Some(Wait::Other(reason)) }
    }
}

/// The addresses of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The agent's HTTP address.
    pub agent: SocketAddr,
    /// The address on which exec.py's TensorFlow server must listen.
    pub tensorflow: SocketAddr,
}

/// Everything that the master has observed of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The replica's pod; `None` before the back end lists the pod, and after the pod's deletion.
    pub pod: Option<PodState>,
    /// Why the replica's pod does not exist yet, or why the agent is not ready yet, if known.
    pub wait: Option<Wait>,
    /// The state of the replica's agent.
    pub agent: AgentState,
    /// Whether this master has requested the pod's deletion.
    pub deletion: PodDeletion,
    /// The newest start of which the pod is known to be a member. This master has chosen it, or the agent has reported
    /// it.
    pub enrolled: Option<Enrolled>,
    /// Whether an earlier master may have created the replica's pod, and started exec.py in it.
    pub is_found: bool,
}

/// A pod's membership in one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enrolled {
    /// The start.
    pub generation: Generation,
    /// The pod's membership in that start.
    pub membership: Membership,
}

/// Whether this master has requested a pod's deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodDeletion {
    /// This master has not requested the deletion. The cluster or a user may still delete the pod.
    NotAsked,
    /// This master has requested the deletion. The pod's loss is not the cause of a failure.
    Asked,
}

impl Default for Observation {
    fn default() -> Self {
        Self::NEW
    }
}

impl Observation {
    /// A replica about which nothing is known yet.
    pub const NEW: Self = Self {
        pod: None,
        wait: None,
        agent: AgentState::Silent,
        deletion: PodDeletion::NotAsked,
        enrolled: None,
        is_found: false,
    };

    /// Applies a report about the replica's agent. Ignores a late report: acknowledgements and statuses may arrive out
    /// of order. After the agent became unreachable, every answer counts as late.
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
            (AgentState::Unreachable { .. }, heard) => !matches!(heard, AgentState::Unreachable { .. }),
            _ => false,
        };
        if !is_late {
            self.agent_becomes(heard);
        }
    }

    /// Sets the state of the replica's agent. Keeps the enrolment that the previous state reported.
    pub fn agent_becomes(&mut self, agent: AgentState) {
        self.enrolled = self.enrolment();
        self.wait = None;
        self.agent = agent;
    }

    /// The membership of the replica's pod in the newest known start. An earlier master may have begun that start.
    pub fn enrolment(&self) -> Option<Enrolled> {
        let enrolled = |generation: Option<Generation>, membership: Option<Membership>| {
            Some(Enrolled { generation: generation?, membership: membership? })
        };
        let reported = self.agent.status().and_then(|status| enrolled(status.generation, status.membership));
        let words = if let Some(PodState::Terminated { exit, .. }) = &self.pod { exit.as_ref() } else { None };
        let last = words.and_then(|words| enrolled(words.generation, words.membership));
        [self.enrolled, reported, last].into_iter().flatten().max_by_key(|enrolled| enrolled.generation)
    }

    /// Whether exec.py of any start may still run in the replica's pod.
    pub fn may_run(&self) -> bool {
        let may_run = match &self.agent {
            // Without an address, no master can have asked the agent to run exec.py.
            AgentState::Silent => self.is_found && !matches!(self.pod, Some(PodState::Pending { .. })),
            AgentState::SeedOnly | AgentState::Configured(_) => false,
            AgentState::Started(_) => true,
            AgentState::Status(status) => matches!(status.state, RunState::Running | RunState::Stopping),
            AgentState::Unreachable { is_fenced: true, .. } => false,
            AgentState::Failed(_) | AgentState::Unreachable { is_fenced: false, .. } => {
                self.is_found || self.enrolled.is_some()
            }
        };
        may_run && self.presence() == Presence::Live
    }

    /// The addresses of the replica's pod, while the pod runs.
    pub fn addresses(&self) -> Option<Addresses> {
        if let Some(PodState::Running(addresses)) = self.pod { Some(addresses) } else { None }
    }

    /// Whether the replica's pod exists.
    pub fn presence(&self) -> Presence {
        match &self.pod {
            Some(
                PodState::Running(_) | PodState::Pending { .. } | PodState::Unusable { .. } | PodState::Leaving { .. },
            ) => Presence::Live,
            Some(PodState::Disrupted { others, .. } | PodState::Terminated { others, .. }) => match others {
                Others::Running => Presence::Occupied,
                Others::Ended => Presence::Ended,
            },
            None => Presence::Absent,
        }
    }

    /// Whether the replica's pod has a node.
    pub fn has_node(&self) -> bool {
        match &self.pod {
            Some(PodState::Pending { has_node, .. }) => *has_node,
            Some(
                PodState::Running(_)
                | PodState::Unusable { .. }
                | PodState::Leaving { .. }
                | PodState::Disrupted { .. }
                | PodState::Terminated { .. },
            ) => true,
            None => false,
        }
    }

    /// Whether the replica's pod is being evicted or deleted.
    pub fn is_leaving(&self) -> bool {
        matches!(self.pod, Some(PodState::Leaving { .. }))
    }

    /// Why the replica has no pod, why its pod has no address, or why its agent is not ready, if known.
    pub fn waits_for(&self) -> Option<&Wait> {
        match &self.pod {
            Some(PodState::Pending { wait, .. }) => wait.as_ref(),
            Some(PodState::Running(_)) | None => self.wait.as_ref(),
            Some(
                PodState::Unusable { .. }
                | PodState::Leaving { .. }
                | PodState::Disrupted { .. }
                | PodState::Terminated { .. },
            ) => None,
        }
    }

    /// The loss of the replica's pod, with this reason.
    pub fn lost(&self, reason: &str) -> LostRun {
        match self.deletion {
            PodDeletion::NotAsked => LostRun::disrupted(reason),
            PodDeletion::Asked => LostRun::broken(reason),
        }
    }
}

/// Why a replica without a pod is lost. On bare machines, a pod is a machine's agent.
pub(crate) const GONE: &str = "its pod or its machine is gone";

/// Whether a pod exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// There is no pod.
    Absent,
    /// The pod exists, and its agent may run.
    Live,
    /// The agent has ended, but other containers of the pod may still run.
    Occupied,
    /// The pod has ended and is still listed.
    Ended,
}

impl Presence {
    /// Whether containers of the pod may still run.
    pub fn has_containers(self) -> bool {
        match self {
            Self::Live | Self::Occupied => true,
            Self::Absent | Self::Ended => false,
        }
    }
}
