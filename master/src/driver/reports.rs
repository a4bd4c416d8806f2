//! The reports of a driver's tasks.

use job::observation::{AgentState, Wait};
use protocol::ids::{Generation, ReplicaId};
use protocol::progress::Progress;

/// A replica and the number of its current or next pod. A report about an earlier pod is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) id: ReplicaId,
    /// The number of the replica's pod, counted from 0.
    pub(super) pod: u32,
}

/// A report of a task to its driver.
#[derive(Debug)]
pub(super) enum Report {
    /// A replica's agent has this state now.
    Agent(Subject, AgentState),
    /// The script of a replica has reported its progress in this start. Only for jobs whose batch sizes follow measured
    /// times.
    Progress(Subject, Generation, Box<Progress>),
    /// A replica has no pod yet, or its agent is not ready yet, for this reason.
    Waits(Subject, Wait),
    /// A replica's agent does not stop its run.
    NotStopped {
        replica: ReplicaId,
        /// The start whose run was to stop. By now, the replica may have a newer start in another pod.
        generation: Option<Generation>,
        /// Why the agent does not stop the run.
        reason: String,
    },
    /// A task of the driver has panicked, so the task's work is not done.
    Broken,
}
