//! Where each replica stands, computed from what its pod and its agent say; never stored.

use std::net::SocketAddr;

use protocol::agent::{ExitOutcome, ExitReport, LastWords, RunState, RunStatus};
use protocol::failure::Loss;
use protocol::ids::Generation;
use protocol::view::ReplicaState;

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
        /// In the back end's words.
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
    Refused(LostRun),
}

impl AgentState {
    /// What it said of its run, where that is the newest that is known of it.
    pub fn status(&self) -> Option<&RunStatus> {
        match self {
            Self::Status(status) => Some(status),
            Self::Silent | Self::SeedOnly | Self::Configured(_) | Self::Started(_) | Self::Refused(_) => None,
        }
    }

    /// Whether it answers as one of ours does.
    pub fn has_answered(&self) -> bool {
        match self {
            Self::Status(_) | Self::Configured(_) | Self::Started(_) => true,
            Self::Silent | Self::SeedOnly | Self::Refused(_) => false,
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
    pub const NEW: Self = Self { pod: None, agent: AgentState::Silent, deleted_by: DeletedBy::Others };

    /// Takes in what its agent is now known to be. An acknowledgement that is heard late does not undo a status that
    /// has gone on from there.
    pub fn hear(&mut self, heard: AgentState) {
        let acknowledged = match &heard {
            AgentState::Configured(generation) | AgentState::Started(generation) => Some(*generation),
            AgentState::Silent | AgentState::SeedOnly | AgentState::Status(_) | AgentState::Refused(_) => None,
        };
        if let (Some(_), AgentState::Status(status)) = (acknowledged, &self.agent)
            && status.generation >= acknowledged
            && matches!(status.state, RunState::Running | RunState::Stopping | RunState::Exited)
        {
            return;
        }
        self.agent = heard;
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

    /// Why its pod has no address yet, where that is known.
    pub fn waits_for(&self) -> Option<&str> {
        match &self.pod {
            Some(PodState::Pending { reason }) => reason.as_deref(),
            Some(
                PodState::Running(_)
                | PodState::Unusable { .. }
                | PodState::Leaving { .. }
                | PodState::Disrupted { .. }
                | PodState::Terminated { .. },
            )
            | None => None,
        }
    }

    /// A loss of its pod for this reason.
    fn lost(&self, reason: &str) -> LostRun {
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

/// Where a replica stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaPhase {
    /// Its pod is asked for and has no address yet.
    Requested,
    /// Its pod has a place, its agent has not answered.
    Scheduled,
    /// Its agent answers and has nothing of the current generation.
    Joined,
    /// It has the environment of this generation.
    Configured(Generation),
    /// exec.py runs in this generation.
    Running(Generation),
    /// exec.py has ended in this generation.
    Exited(Generation, ExitReport),
    /// Its pod is gone or its agent does not behave; its run is over.
    Lost(LostRun),
}

impl ReplicaPhase {
    /// Computes the phase. A run of a generation older than `current` is history and does not count.
    pub fn of(observation: &Observation, current: Option<Generation>) -> Self {
        let phase = Self::of_run_and_pod(observation, current);
        // What was told to end with its pod may say 0, and has not done its work.
        match phase.exit().filter(|exit| exit.terminated) {
            None => phase,
            Some(exit) => Self::Lost(match &observation.pod {
                Some(PodState::Leaving { reason } | PodState::Disrupted { reason }) => observation.lost(reason),
                Some(
                    PodState::Pending { .. }
                    | PodState::Running(_)
                    | PodState::Unusable { .. }
                    | PodState::Terminated { .. },
                )
                | None => observation.lost(&format!("its pod was told to end, and exec.py {}", exit.outcome)),
            }),
        }
    }

    fn of_run_and_pod(observation: &Observation, current: Option<Generation>) -> Self {
        let run = Self::of_agent(&observation.agent, current);
        match (&observation.pod, run) {
            (_, exited @ Self::Exited(..)) => exited,
            (Some(PodState::Terminated { exit: Some(LastWords { generation: Some(generation), exit }), .. }), _)
                if is_current(*generation, current) =>
            {
                Self::Exited(*generation, exit.clone())
            }
            (
                Some(PodState::Terminated { exit: Some(LastWords { generation: None, exit }), .. }),
                Self::Running(generation),
            ) => Self::Exited(generation, exit.clone()),
            (Some(PodState::Leaving { reason } | PodState::Disrupted { reason }), _) => {
                Self::Lost(observation.lost(reason))
            }
            (Some(PodState::Terminated { reason, .. }), _) => Self::Lost(LostRun::broken(reason)),
            (Some(PodState::Unusable { reason }), _) => Self::Lost(LostRun::hopeless(reason)),
            (_, lost @ Self::Lost(_)) => lost,
            (None, Self::Running(_)) => Self::Lost(observation.lost("its pod was deleted")),
            (None, _) => Self::Requested,
            // It has no address yet, and mostly no place.
            (Some(PodState::Pending { .. }), _) => Self::Requested,
            (Some(PodState::Running(_)), run) => run,
        }
    }

    fn of_agent(agent: &AgentState, current: Option<Generation>) -> Self {
        let is_current = |generation: &Generation| is_current(*generation, current);
        match agent {
            AgentState::Silent => Self::Scheduled,
            AgentState::Refused(lost) => Self::Lost(lost.clone()),
            AgentState::Configured(generation) if is_current(generation) => Self::Configured(*generation),
            AgentState::Started(generation) if is_current(generation) => Self::Running(*generation),
            AgentState::SeedOnly | AgentState::Configured(_) | AgentState::Started(_) => Self::Joined,
            AgentState::Status(status) => match status.generation {
                Some(generation) if is_current(&generation) => Self::of_run(status, generation),
                Some(over) if matches!(status.state, RunState::Running | RunState::Stopping) => {
                    Self::Lost(LostRun::broken(format!("its agent still runs start {over}, which is over")))
                }
                // Its agent ends with it, and takes no other start.
                Some(_) if status.exit.as_ref().is_some_and(|exit| exit.terminated) => {
                    Self::Lost(LostRun::disrupted("its pod was told to end"))
                }
                Some(_) | None => Self::Joined,
            },
        }
    }

    fn of_run(status: &RunStatus, generation: Generation) -> Self {
        match (status.state, &status.exit) {
            (RunState::Idle, _) => Self::Joined,
            (RunState::Configured, _) => Self::Configured(generation),
            (RunState::Running | RunState::Stopping, _) => Self::Running(generation),
            (RunState::Exited, Some(report)) => Self::Exited(generation, report.clone()),
            (RunState::Exited, None) => Self::Lost(LostRun::broken("its agent did not say how exec.py ended")),
        }
    }

    /// How it is shown.
    pub fn state(&self) -> ReplicaState {
        match self {
            Self::Requested => ReplicaState::Requested,
            Self::Scheduled => ReplicaState::Scheduled,
            Self::Joined => ReplicaState::Joined,
            Self::Configured(_) => ReplicaState::Configured,
            Self::Running(_) => ReplicaState::Running,
            Self::Exited(..) => ReplicaState::Exited,
            Self::Lost(_) => ReplicaState::Lost,
        }
    }

    /// Whether its agent has answered and still may.
    pub fn has_joined(&self) -> bool {
        match self {
            Self::Joined | Self::Configured(_) | Self::Running(_) | Self::Exited(..) => true,
            Self::Requested | Self::Scheduled | Self::Lost(_) => false,
        }
    }

    /// Whether it has, or had, the environment of the current generation.
    pub fn was_configured(&self) -> bool {
        match self {
            Self::Configured(_) | Self::Running(_) | Self::Exited(..) => true,
            Self::Requested | Self::Scheduled | Self::Joined | Self::Lost(_) => false,
        }
    }

    /// Whether exec.py was started in the current generation.
    pub fn was_launched(&self) -> bool {
        match self {
            Self::Running(_) | Self::Exited(..) => true,
            Self::Requested | Self::Scheduled | Self::Joined | Self::Configured(_) | Self::Lost(_) => false,
        }
    }

    /// How exec.py ended, where it said so.
    pub fn exit(&self) -> Option<&ExitReport> {
        match self {
            Self::Exited(_, exit) => Some(exit),
            Self::Requested
            | Self::Scheduled
            | Self::Joined
            | Self::Configured(_)
            | Self::Running(_)
            | Self::Lost(_) => None,
        }
    }

    /// Whether its start was stopped before exec.py was started.
    pub fn was_called_back(&self) -> bool {
        self.exit().is_some_and(|exit| exit.stopped && matches!(exit.outcome, ExitOutcome::NotStarted(_)))
    }

    /// The start that it is part of, if its agent has been told of one.
    pub fn generation(&self) -> Option<Generation> {
        match self {
            Self::Configured(generation) | Self::Running(generation) | Self::Exited(generation, _) => Some(*generation),
            Self::Requested | Self::Scheduled | Self::Joined | Self::Lost(_) => None,
        }
    }

    /// Whether exec.py has done what it should: one that ends well because it was told to has not.
    pub fn has_succeeded(&self) -> bool {
        self.exit().is_some_and(|exit| exit.is_success() && !exit.stopped)
    }

    /// Whether its run is over for good.
    pub fn is_dead(&self) -> bool {
        match self {
            Self::Exited(..) | Self::Lost(_) => true,
            Self::Requested | Self::Scheduled | Self::Joined | Self::Configured(_) | Self::Running(_) => false,
        }
    }
}

/// Whether a start is the current one, and not history.
fn is_current(generation: Generation, current: Option<Generation>) -> bool {
    current.is_none_or(|current| generation >= current)
}
