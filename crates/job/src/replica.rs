//! The phase of each replica. The phase is computed from the replica's pod and agent, and never stored.

use protocol::agent::{ExitOutcome, ExitReport, LastWords, RunState, RunStatus};
use protocol::ids::Generation;
use protocol::view::ReplicaState;

use super::observation::{AgentState, GONE, LostRun, Observation, PodState};

/// The phase of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaPhase {
    /// The replica's pod does not exist yet, or has no address yet.
    Requested,
    /// The replica's pod has an address, but the agent has not answered.
    Scheduled,
    /// The replica's agent has answered and has no environment for the current generation.
    Joined,
    /// The replica's agent has the environment of this generation.
    Configured(Generation),
    /// exec.py runs in this generation.
    Running(Generation),
    /// The run of this generation has ended.
    Exited(Generation, ExitReport),
    /// The replica's pod is lost or the agent misbehaves. The run counts as ended.
    Lost(LostRun),
}

impl ReplicaPhase {
    /// Computes the phase. Generations older than `current` belong to earlier starts.
    pub fn of(observation: &Observation, current: Option<Generation>) -> Self {
        let phase = Self::of_run_and_pod(observation, current);
        // A run that was stopped together with its pod may exit with 0 without having done its work.
        match phase.exit().filter(|exit| exit.terminated) {
            None => phase,
            Some(exit) => Self::Lost(
                if let Some(PodState::Leaving { reason } | PodState::Disrupted { reason, .. }) = &observation.pod {
                    observation.lost(reason)
                } else {
                    observation.lost(&format!("its agent was told to end, and exec.py {}", exit.outcome))
                },
            ),
        }
    }

    fn of_run_and_pod(observation: &Observation, current: Option<Generation>) -> Self {
        let run = Self::of_agent(&observation.agent, current);
        match (&observation.pod, run) {
            (_, exited @ Self::Exited(..)) => exited,
            (
                Some(PodState::Terminated { exit: Some(LastWords { generation: Some(generation), exit, .. }), .. }),
                _,
            ) if is_current(*generation, current) => Self::Exited(*generation, exit.clone()),
            (
                Some(PodState::Terminated { exit: Some(LastWords { generation: None, exit, .. }), .. }),
                Self::Running(generation),
            ) => match (&exit.outcome, &observation.agent) {
                // A signal has ended the pod. An agent that reports a status exits with a code, even if a signal has
                // ended its script. So the signal has killed the agent itself.
                (ExitOutcome::Signal(_), AgentState::Status(_)) => {
                    Self::Lost(LostRun::broken(format!("its agent {}", exit.outcome)))
                }
                (_, _) => Self::Exited(generation, exit.clone()),
            },
            (Some(PodState::Leaving { reason } | PodState::Disrupted { reason, .. }), _) => {
                Self::Lost(observation.lost(reason))
            }
            (Some(PodState::Terminated { reason, .. }), _) => Self::Lost(LostRun::broken(reason)),
            (Some(PodState::Unusable { reason }), _) => Self::Lost(LostRun::hopeless(reason)),
            (_, lost @ Self::Lost(_)) => lost,
            (None, Self::Running(_)) => Self::Lost(observation.lost(GONE)),
            (None, _) => Self::Requested,
            // The pod has no address yet, and usually no node.
            (Some(PodState::Pending { .. }), _) => Self::Requested,
            (Some(PodState::Running(_)), run) => run,
        }
    }

    fn of_agent(agent: &AgentState, current: Option<Generation>) -> Self {
        let is_current = |generation: &Generation| is_current(*generation, current);
        match agent {
            AgentState::Silent => Self::Scheduled,
            AgentState::Failed(lost) | AgentState::Unreachable { lost, .. } => Self::Lost(lost.clone()),
            AgentState::Configured(generation) if is_current(generation) => Self::Configured(*generation),
            AgentState::Started(generation) if is_current(generation) => Self::Running(*generation),
            AgentState::SeedOnly | AgentState::Configured(_) | AgentState::Started(_) => Self::Joined,
            AgentState::Status(status) => match status.generation {
                Some(generation) if is_current(&generation) => Self::of_run(status, generation),
                Some(over) if matches!(status.state, RunState::Running | RunState::Stopping) => {
                    Self::Lost(LostRun::broken(format!("its agent still runs exec.py of an earlier start, {over}")))
                }
                // An agent that is shutting down with its pod accepts no other start.
                Some(_) if status.exit.as_ref().is_some_and(|exit| exit.terminated) => {
                    Self::Lost(LostRun::disrupted("its agent was told to end"))
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
            (RunState::Exited, None) => Self::Lost(LostRun::broken("its agent did not report how exec.py ended")),
        }
    }

    /// The state that users see.
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

    /// Whether the replica's agent has answered and was not lost. The agent of a run that has exited may have ended
    /// too.
    pub fn has_joined(&self) -> bool {
        match self {
            Self::Joined | Self::Configured(_) | Self::Running(_) | Self::Exited(..) => true,
            Self::Requested | Self::Scheduled | Self::Lost(_) => false,
        }
    }

    /// Whether the replica's agent has received the environment of the current generation. False for a lost replica.
    pub fn was_configured(&self) -> bool {
        match self {
            Self::Configured(_) | Self::Running(_) | Self::Exited(..) => true,
            Self::Requested | Self::Scheduled | Self::Joined | Self::Lost(_) => false,
        }
    }

    /// Whether the run of the current generation has begun, or has ended already, even if exec.py could not be started.
    /// False for a lost replica.
    pub fn was_launched(&self) -> bool {
        match self {
            Self::Running(_) | Self::Exited(..) => true,
            Self::Requested | Self::Scheduled | Self::Joined | Self::Configured(_) | Self::Lost(_) => false,
        }
    }

    /// Whether the replica was lost.
    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// How the replica was lost, if it is lost.
    pub fn lost(&self) -> Option<&LostRun> {
        if let Self::Lost(lost) = self { Some(lost) } else { None }
    }

    /// How exec.py ended, if it has not succeeded.
    pub fn failed(&self) -> Option<&ExitReport> {
        if self.has_succeeded() { None } else { self.exit() }
    }

    /// How exec.py ended, if a report exists.
    pub fn exit(&self) -> Option<&ExitReport> {
        if let Self::Exited(_, exit) = self { Some(exit) } else { None }
    }

    /// Whether a stop request ended the replica's run before exec.py was started.
    pub fn was_called_back(&self) -> bool {
        self.exit().is_some_and(|exit| exit.stopped && matches!(exit.outcome, ExitOutcome::NotStarted(_)))
    }

    /// The start that the replica takes part in, if any.
    pub fn generation(&self) -> Option<Generation> {
        match self {
            Self::Configured(generation) | Self::Running(generation) | Self::Exited(generation, _) => Some(*generation),
            Self::Requested | Self::Scheduled | Self::Joined | Self::Lost(_) => None,
        }
    }

    /// Whether exec.py succeeded. An exit with 0 after a stop request is no success.
    pub fn has_succeeded(&self) -> bool {
        self.exit().is_some_and(|exit| exit.is_success() && !exit.stopped)
    }

    /// Whether the replica's run has ended or is lost.
    pub fn is_dead(&self) -> bool {
        match self {
            Self::Exited(..) | Self::Lost(_) => true,
            Self::Requested | Self::Scheduled | Self::Joined | Self::Configured(_) | Self::Running(_) => false,
        }
    }
}

/// Whether a generation is not older than `current`.
fn is_current(generation: Generation, current: Option<Generation>) -> bool {
    current.is_none_or(|current| generation >= current)
}
