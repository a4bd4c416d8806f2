//! Deadlines, grace and what counts as success, as values.

use std::time::Duration;

use protocol::ids::{ReplicaId, Role};
use protocol::job::{JobSpec, Strategy};

use super::replica::{Gang, Member, ReplicaPhase};

/// How long a gang may take to be complete. TensorFlow itself waits for a missing peer without limit.
pub const START_TIMEOUT: Duration = Duration::from_secs(600);
/// Time between SIGTERM and SIGKILL when a run is stopped in good order. TensorFlow swallows SIGTERM,
/// so a script that does not ask for it always takes this long.
pub const STOP_GRACE: Duration = Duration::from_secs(2);
/// Time, beyond the grace, after which a pod is deleted that has not said that its run ended, or has not ended itself.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);

/// The rules of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// See [`START_TIMEOUT`].
    pub start_timeout: Duration,
    /// See [`STOP_GRACE`].
    pub stop_grace: Duration,
    /// See [`RELEASE_TIMEOUT`].
    pub release_timeout: Duration,
    /// What must happen for the job to have succeeded.
    pub success: SuccessRule,
}

/// What must happen for a job to have succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuccessRule {
    /// Every replica that trains exits with 0.
    AllThatTrain,
    /// This one exits with 0; the others serve it and never end by themselves.
    Decider(ReplicaId),
}

impl Policy {
    /// The rules that follow from the spec.
    pub fn of(spec: &JobSpec) -> Self {
        let decider = if spec.chief_num > 0 { Role::Chief } else { Role::Worker };
        let success = match spec.strategy {
            Strategy::AllReduce => SuccessRule::AllThatTrain,
            Strategy::ParameterServer => SuccessRule::Decider(ReplicaId { role: decider, index: 0 }),
        };
        Self { start_timeout: START_TIMEOUT, stop_grace: STOP_GRACE, release_timeout: RELEASE_TIMEOUT, success }
    }
}

impl SuccessRule {
    /// Whether the gang has done what it should.
    pub fn is_met(self, gang: &Gang) -> bool {
        let succeeded = |member: &Member| matches!(&member.phase, ReplicaPhase::Exited(_, exit) if exit.is_success());
        match self {
            Self::AllThatTrain => gang.members().iter().filter(|member| member.id.role.trains()).all(succeeded),
            Self::Decider(decider) => gang.any(|member| member.id == decider && succeeded(member)),
        }
    }
}
