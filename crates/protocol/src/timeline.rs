//! The timeline of a job: when each start of its gang, and each replica, reached each step, and how each start ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::failure::Failure;
use crate::ids::{Generation, JobName, ReplicaId, UnixMillis};
use crate::progress::LostSteps;
use crate::spent::Spent;
use crate::starts::{ChangeCause, GangChange};
use crate::view::JobState;

/// Maximum number of starts in a timeline. Of older starts, only their causes and their time are counted.
pub const STARTS_MAX: usize = 64;

/// The answer of `GET /v1/jobs/NAME/timeline`. All times are by the master's clock, unless a field says otherwise.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeline {
    /// The job's name.
    pub name: JobName,
    /// The job's unique id.
    pub uid: String,
    /// The job's state.
    pub state: JobState,
    /// The time of this answer.
    pub now: UnixMillis,
    /// The master accepted the job.
    pub accepted: UnixMillis,
    /// When this master took the job over from an earlier master. About the time before, the timeline has only what the
    /// job's record and its agents report. Absent: this master has seen everything.
    pub taken_over: Option<UnixMillis>,
    /// The master decided the result.
    pub ended: Option<UnixMillis>,
    /// The number of starts before this master took the job over that are not in `starts`.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub unseen: u32,
    /// The starts before those in `starts`, if this master has seen more than [`STARTS_MAX`].
    pub folded: Option<Folded>,
    /// The newest starts, oldest first; at most [`STARTS_MAX`]. While the gang gathers, the last entry is the start that
    /// it gathers for.
    pub starts: Vec<StartFacts>,
    /// The replicas of the newest start, ordered by role and index. While the gang gathers: the replicas so far. An
    /// evaluator that has started again alone is there once for each pod.
    pub replicas: Vec<ReplicaFacts>,
    /// The replicas of the newest start that failed, if a later start has begun since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_replicas: Vec<ReplicaFacts>,
    /// How the time of the job was spent, from `accepted` or `taken_over` until `ended` or `now`.
    pub spent: Spent,
}

/// What is known of one start of the gang. A time is absent if it has not been reached, or if only an earlier master
/// saw it.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StartFacts {
    /// The number of the start. Absent while the gang gathers, and if it was never complete.
    pub generation: Option<Generation>,
    /// Why the start began. Absent if it is not known yet, and for a start that an earlier master began.
    pub cause: Option<ChangeCause>,
    /// The number of workers that take part. 0 while the gang gathers.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub workers: u32,
    /// The steps of the previous start that are lost. Absent if none are known to be lost.
    pub lost_steps: Option<LostSteps>,
    /// The gang began to gather. Absent for a start that an earlier master began.
    pub began: Option<UnixMillis>,
    /// All agents had answered: the gang was complete.
    pub complete: Option<UnixMillis>,
    /// Every agent had its environment.
    pub configured: Option<UnixMillis>,
    /// Every exec.py was started. For a start that an earlier master began, by the clocks of the agents.
    pub started: Option<UnixMillis>,
    /// The first step that a script reported with the helper.
    pub first_step: Option<StepAt>,
    /// The last step that a script has reported. The master asks for steps every 2 to 30 seconds.
    pub last_step: Option<StepAt>,
    /// The master began to stop the runs.
    pub stopped: Option<UnixMillis>,
    /// All runs had ended.
    pub dead: Option<UnixMillis>,
    /// How the start ended.
    pub ending: Option<StartEnding>,
}

impl StartFacts {
    /// The start with its cause, as the view of a job has it. `None` if one of them is unknown.
    pub fn change(&self) -> Option<GangChange> {
        let Self { workers, lost_steps, .. } = *self;
        let (generation, at, cause) = (self.generation?, self.complete?, self.cause.clone()?);
        Some(GangChange { generation, at, workers, cause, lost_steps })
    }
}

/// A step, and when the master received the report of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepAt {
    /// The step, by the script's own count.
    pub step: u64,
    /// When the master received the report.
    pub at: UnixMillis,
}

/// How a start ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum StartEnding {
    /// The job succeeded.
    Succeeded,
    /// The start failed.
    Failed {
        /// The first failure in time, without what the script printed.
        failure: Failure,
    },
    /// A user cancelled the job.
    Cancelled,
    /// The members or the code changed, or another master took over. The next start has the cause.
    Regrouped,
    /// A user suspended the job.
    Suspended,
}

/// What is known of one replica in its newest start. A time is absent if it has not been reached, or if only an earlier
/// master saw it. A pod that serves several starts keeps the times up to `warm`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaFacts {
    /// Role and index, such as `worker-2`.
    pub replica: ReplicaId,
    /// The number of the replica's pod under this master, from 0.
    pub pod: u32,
    /// The start of which the replica is a member. Absent before its first start.
    pub generation: Option<Generation>,
    /// The master requested the pod.
    pub requested: Option<UnixMillis>,
    /// The pod had a node.
    pub scheduled: Option<UnixMillis>,
    /// The pod had an address: its image was pulled, and its containers ran.
    pub addressed: Option<UnixMillis>,
    /// The agent answered.
    pub joined: Option<UnixMillis>,
    /// The warm interpreter had imported its modules.
    pub warm: Option<UnixMillis>,
    /// The agent had its environment.
    pub configured: Option<UnixMillis>,
    /// exec.py was started. If an earlier master started it, by the agent's clock.
    pub started: Option<UnixMillis>,
    /// The script had reported a step with the helper.
    pub first_step: Option<UnixMillis>,
    /// The run had ended, or was lost.
    pub ended: Option<UnixMillis>,
    /// How the run ended, or why it was lost.
    pub reason: Option<String>,
}

impl ReplicaFacts {
    /// A replica about which nothing is known yet.
    pub fn new(replica: ReplicaId, pod: u32) -> Self {
        Self {
            replica,
            pod,
            generation: None,
            requested: None,
            scheduled: None,
            addressed: None,
            joined: None,
            warm: None,
            configured: None,
            started: None,
            first_step: None,
            ended: None,
            reason: None,
        }
    }
}

/// Starts for which only the number and the time are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Folded {
    /// How many starts began for each cause, by the cause's name: `first`, `joined`, `shrunk`, `left`, `resumed`,
    /// `pushed`, `taken_over` or `unknown`.
    pub causes: BTreeMap<String, u32>,
    /// The end of the last of these starts.
    pub until: UnixMillis,
    /// How the time until then was spent.
    pub spent: Spent,
}

impl Folded {
    /// The number of these starts.
    pub fn starts(&self) -> u32 {
        self.causes.values().sum()
    }
}
