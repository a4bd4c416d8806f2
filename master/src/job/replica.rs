//! Where each replica stands, computed from what its pod and its agent say; never stored.

use std::net::SocketAddr;

use protocol::agent::{ExitReport, RunState, RunStatus};
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::view::{Failure, ReplicaState};

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
    /// It has ended and runs nothing any more.
    Terminated {
        /// How its process ended, where that says how exec.py ended.
        exit: Option<ExitReport>,
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
    /// It answered, and not as an agent should.
    Refused(String),
}

/// All that is known of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Its pod; absent until the back end has heard of it, or after it was deleted.
    pub pod: Option<PodState>,
    /// Its agent.
    pub agent: AgentState,
}

impl Observation {
    /// Nothing is known yet.
    pub const NEW: Self = Self { pod: None, agent: AgentState::Silent };

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
            Some(PodState::Pending { .. } | PodState::Unusable { .. } | PodState::Terminated { .. }) | None => None,
        }
    }

    /// Whether its pod exists and has not ended.
    pub fn is_live(&self) -> bool {
        match &self.pod {
            Some(PodState::Running(_) | PodState::Pending { .. } | PodState::Unusable { .. }) => true,
            Some(PodState::Terminated { .. }) | None => false,
        }
    }
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
    Lost(String),
}

impl ReplicaPhase {
    /// Computes the phase. A run of a generation older than `current` is history and does not count.
    pub fn of(observation: &Observation, current: Option<Generation>) -> Self {
        let run = Self::of_agent(&observation.agent, current);
        match (&observation.pod, run) {
            (_, exited @ Self::Exited(..)) => exited,
            (Some(PodState::Terminated { exit: Some(report), .. }), Self::Running(generation)) => {
                Self::Exited(generation, report.clone())
            }
            (Some(PodState::Terminated { reason, .. } | PodState::Unusable { reason }), _) => {
                Self::Lost(reason.clone())
            }
            (_, lost @ Self::Lost(_)) => lost,
            (None, Self::Running(_)) => Self::Lost("its pod was deleted".to_owned()),
            (None, _) => Self::Requested,
            // It has no address yet, and mostly no place.
            (Some(PodState::Pending { .. }), _) => Self::Requested,
            (Some(PodState::Running(_)), run) => run,
        }
    }

    fn of_agent(agent: &AgentState, current: Option<Generation>) -> Self {
        let is_current = |generation: &Generation| current.is_none_or(|current| *generation >= current);
        match agent {
            AgentState::Silent => Self::Scheduled,
            AgentState::Refused(reason) => Self::Lost(reason.clone()),
            AgentState::Configured(generation) if is_current(generation) => Self::Configured(*generation),
            AgentState::Started(generation) if is_current(generation) => Self::Running(*generation),
            AgentState::SeedOnly | AgentState::Configured(_) | AgentState::Started(_) => Self::Joined,
            AgentState::Status(status) => match status.generation {
                Some(generation) if is_current(&generation) => Self::of_run(status, generation),
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
            (RunState::Exited, None) => Self::Lost("its agent did not say how exec.py ended".to_owned()),
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

    /// The start that it is part of, if its agent has been told of one.
    pub fn generation(&self) -> Option<Generation> {
        match self {
            Self::Configured(generation) | Self::Running(generation) | Self::Exited(generation, _) => Some(*generation),
            Self::Requested | Self::Scheduled | Self::Joined | Self::Lost(_) => None,
        }
    }

    /// Whether its run is over for good.
    pub fn is_dead(&self) -> bool {
        match self {
            Self::Exited(..) | Self::Lost(_) => true,
            Self::Requested | Self::Scheduled | Self::Joined | Self::Configured(_) | Self::Running(_) => false,
        }
    }
}

/// One replica, where it stands, and whether its pod still uses anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub id: ReplicaId,
    /// Where it stands.
    pub phase: ReplicaPhase,
    /// Whether its pod exists and has not ended.
    pub has_live_pod: bool,
}

impl Member {
    /// Why this replica makes its generation fail, if it does.
    fn failure(&self) -> Option<Failure> {
        let replica = self.id;
        match &self.phase {
            ReplicaPhase::Exited(_, exit) if exit.is_success() => None,
            ReplicaPhase::Exited(_, exit) => Some(Failure::ReplicaExited { replica, exit: exit.clone() }),
            ReplicaPhase::Lost(reason) => Some(Failure::ReplicaLost { replica, reason: reason.clone() }),
            ReplicaPhase::Requested
            | ReplicaPhase::Scheduled
            | ReplicaPhase::Joined
            | ReplicaPhase::Configured(_)
            | ReplicaPhase::Running(_) => None,
        }
    }
}

/// Every replica of a job, in the plan's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang(Vec<Member>);

impl Gang {
    /// The gang of these members.
    pub fn new(members: Vec<Member>) -> Self {
        Self(members)
    }

    /// Its members.
    pub fn members(&self) -> &[Member] {
        &self.0
    }

    /// Whether `test` holds for every replica's phase.
    pub fn all(&self, test: impl Fn(&ReplicaPhase) -> bool) -> bool {
        self.0.iter().all(|member| test(&member.phase))
    }

    /// Whether `test` holds for a member.
    pub fn any(&self, test: impl Fn(&Member) -> bool) -> bool {
        self.0.iter().any(test)
    }

    /// The first failure in time, if there is one, while this master has stopped nothing: the earliest exit by the
    /// agents' clocks, for what comes after it is an echo; a lost pod, which has no time of its own, where no exec.py
    /// failed; a run that someone else stopped where there is nothing else, for the gang cannot go on without it.
    pub fn first_failure(&self) -> Option<Failure> {
        self.failures().min_by_key(|failure| (was_stopped(failure), time_of(failure)))
    }

    /// What a job failed of that `known` brought to its end: an earlier exit may have come to light since. Runs that
    /// were stopped and pods that were lost since are no cause, for by now we stop the ones and delete the others.
    pub fn cause(&self, known: Failure) -> Failure {
        let earlier = |one: Failure, other: Failure| if time_of(&other) < time_of(&one) { other } else { one };
        self.failures().filter(|failure| !was_stopped(failure)).fold(known, earlier)
    }

    fn failures(&self) -> impl Iterator<Item = Failure> {
        self.0.iter().filter_map(Member::failure)
    }

    /// The newest generation in which an exec.py was started.
    pub fn newest_launch(&self) -> Option<Generation> {
        let launched = self.0.iter().filter(|member| member.phase.was_launched());
        launched.filter_map(|member| member.phase.generation()).max()
    }

    /// The newest generation that an agent was told of.
    pub fn newest_generation(&self) -> Option<Generation> {
        self.0.iter().filter_map(|member| member.phase.generation()).max()
    }

    /// A member whose agent has not been told of this generation, or has forgotten it.
    pub fn outside(&self, generation: Generation) -> Option<ReplicaId> {
        self.0.iter().find(|member| member.phase.generation() != Some(generation)).map(|member| member.id)
    }

    /// Those whose agents have not answered.
    pub fn missing(&self) -> Vec<ReplicaId> {
        self.0.iter().filter(|member| !member.phase.has_joined()).map(|member| member.id).collect()
    }
}

/// When a failure was; what has no time of its own counts as the latest.
fn time_of(failure: &Failure) -> UnixMillis {
    match failure {
        Failure::ReplicaExited { exit, .. } => exit.ended_at,
        Failure::ReplicaLost { .. } | Failure::StartTimeout { .. } => UnixMillis(u64::MAX),
    }
}

fn was_stopped(failure: &Failure) -> bool {
    match failure {
        Failure::ReplicaExited { exit, .. } => exit.stopped,
        Failure::ReplicaLost { .. } | Failure::StartTimeout { .. } => false,
    }
}
