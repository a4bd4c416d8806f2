//! What the master shows of a job: state, replicas, result and times.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::agent::ExitReport;
use crate::as_text::names;
use crate::batching::Batches;
use crate::code::CodeId;
use crate::elastic::Workers;
use crate::failure::{Failure, Restarts};
use crate::ids::{Generation, JobName, ReplicaId, UnixMillis};
use crate::job::{JobSpec, Strategy};
use crate::origin::Warning;
use crate::starts::GangChange;

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The job waits until all agents answer.
    Pending,
    /// All agents answer. The master sends every agent its environment, and then starts exec.py.
    Starting,
    /// exec.py has been started in every replica.
    Running,
    /// A run has ended, or must end, for example because a user has cancelled the job. The master stops the replicas
    /// that still run.
    Stopping,
    /// The master prepares a restart: it replaces lost pods and waits for the backoff.
    Restarting,
    /// The script has failed. The job keeps its pods and waits for new code, because its `on_failure` is `wait`.
    Halted,
    /// A user has suspended the job. The job has no pods.
    Suspended,
    /// The job succeeded.
    Succeeded,
    /// The job failed.
    Failed,
    /// A user cancelled the job.
    Cancelled,
}

impl JobState {
    /// Whether the state is final.
    pub fn is_finished(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
            Self::Pending
            | Self::Starting
            | Self::Running
            | Self::Stopping
            | Self::Restarting
            | Self::Halted
            | Self::Suspended => false,
        }
    }
}

names!(JobState {
    Pending => "pending",
    Starting => "starting",
    Running => "running",
    Stopping => "stopping",
    Restarting => "restarting",
    Halted => "halted",
    Suspended => "suspended",
    Succeeded => "succeeded",
    Failed => "failed",
    Cancelled => "cancelled",
});

/// The result of a job. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum JobResult {
    /// The job succeeded.
    Succeeded,
    /// The job failed.
    Failed {
        /// The first failure, which caused the later failures.
        failure: Failure,
    },
    /// A user cancelled the job.
    Cancelled,
}

impl JobResult {
    /// The final state of a job with this result.
    pub fn state(&self) -> JobState {
        match self {
            Self::Succeeded => JobState::Succeeded,
            Self::Failed { .. } => JobState::Failed,
            Self::Cancelled => JobState::Cancelled,
        }
    }
}

/// The state of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// The pod has no address yet.
    Requested,
    /// The pod has an address. The agent has not answered yet.
    Scheduled,
    /// The agent answers.
    Joined,
    /// The agent has the environment of this generation.
    Configured,
    /// exec.py runs.
    Running,
    /// exec.py has ended.
    Exited,
    /// The pod and its run are lost.
    Lost,
}

names!(ReplicaState {
    Requested => "requested",
    Scheduled => "scheduled",
    Joined => "joined",
    Configured => "configured",
    Running => "running",
    Exited => "exited",
    Lost => "lost",
});

/// A replica of a job.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaView {
    /// Role and index, such as `worker-2`.
    pub replica: ReplicaId,
    /// The replica's state.
    pub state: ReplicaState,
    /// The pod's name.
    pub pod: String,
    /// Address of the replica's TensorFlow server, `ip:port`. Absent until known.
    pub address: Option<String>,
    /// Why the replica waits or was lost, in the back end's words.
    pub reason: Option<String>,
    /// Process id of exec.py while it runs.
    pub pid: Option<u32>,
    /// When exec.py started, by the agent's clock.
    pub started_at: Option<UnixMillis>,
    /// How exec.py ended, without what it printed. Absent until it ends.
    pub exit: Option<ExitReport>,
}

/// When the job reached each step, by the master's clock. After another master has taken the job over, the times of
/// earlier steps are absent, except for those that the agents report.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobTimes {
    /// The master accepted the job and wrote its record.
    pub accepted: Option<UnixMillis>,
    /// All agents answered for the first time: the gang was complete.
    pub joined: Option<UnixMillis>,
    /// Every agent had its environment for the first time.
    pub configured: Option<UnixMillis>,
    /// exec.py was started in every replica for the first time.
    pub started: Option<UnixMillis>,
    /// exec.py was started in every replica in the newest start. Absent if the newest start is known to be the job's
    /// first start.
    pub restarted: Option<UnixMillis>,
    /// A user suspended the job. Absent while the job is not suspended.
    pub suspended: Option<UnixMillis>,
    /// A user resumed the job. If this happened several times, the last time.
    pub resumed: Option<UnixMillis>,
    /// The job began to wait for new code. Absent while the job does not wait.
    pub halted: Option<UnixMillis>,
    /// The master decided the result.
    pub ended: Option<UnixMillis>,
    /// All replicas had stopped.
    pub finished: Option<UnixMillis>,
}

/// A job.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    /// The job's name.
    pub name: JobName,
    /// Unique id. A later job with the same name has another uid.
    pub uid: String,
    /// Increases with each change. A long poll waits until `seq` differs from the number in the request.
    pub seq: u64,
    /// The job's state.
    pub state: JobState,
    /// The gang's current start. Absent before the first start.
    pub generation: Option<Generation>,
    /// The job's result. Absent until it is decided.
    pub result: Option<JobResult>,
    /// The gang's restarts, and the reasons.
    #[serde(default, skip_serializing_if = "Restarts::is_empty")]
    pub restarts: Restarts,
    /// The request with every default filled in.
    #[cfg_attr(feature = "openapi", schema(value_type = JobSpec))]
    pub spec: Arc<JobSpec>,
    /// How many workers an elastic job may have now. Absent: the job is not elastic.
    pub workers: Option<Workers>,
    /// The code of the current or the next start, if the job brings its code.
    pub code: Option<CodeId>,
    /// The code that replicas wait for, if the master has lost it. A client that has this code can send it again.
    pub wanted_code: Option<CodeId>,
    /// How often a user has pushed new code.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub pushes: u32,
    /// The value of `pushes` when the newest start that ran was configured. For a halted job: when the failed start was
    /// configured. Smaller than `pushes` until the newest code runs.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub started_pushes: u32,
    /// The members of an elastic job's current start, by seat: chief, workers, parameter servers, evaluator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roster: Vec<ReplicaId>,
    /// The newest starts under this master, oldest first, each with its cause; at most 16. For a job that is not
    /// elastic, only the starts after a push, after `client resume`, or under a new master.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<GangChange>,
    /// All replicas, ordered by role and index.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<ReplicaView>))]
    pub replicas: Arc<[ReplicaView]>,
    /// The job whose gang is first, while this job waits for its turn to create pods. This job is then `pending`.
    pub queued_behind: Option<JobName>,
    /// The batch sizes in use, if the job divides a batch and all workers have reported their sizes.
    pub batches: Option<Batches>,
    /// The folder of the master's host in which the scripts run. Absent if pods are not processes.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub folder: Option<PathBuf>,
    /// When the job reached each step.
    pub times: JobTimes,
    /// Fields of the request that have another meaning in Muster, or no effect. They are listed only in the answer to a
    /// submit. Also contains a warning if only the master's disk has the job's code, although the Kubernetes API could
    /// have a copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

impl JobView {
    /// The spec, to change it. Copies it first if another view shares it.
    pub fn spec_mut(&mut self) -> &mut JobSpec {
        Arc::make_mut(&mut self.spec)
    }

    /// The replicas, to change them. Copies them first if another view shares them.
    pub fn replicas_mut(&mut self) -> &mut [ReplicaView] {
        Arc::make_mut(&mut self.replicas)
    }

    /// The number of replicas in the current start.
    pub fn members(&self) -> usize {
        if self.workers.is_some() { self.roster.len() } else { self.spec.replica_num() as usize }
    }

    /// The first replica that trains.
    pub fn first_training(&self) -> Option<ReplicaId> {
        self.replicas.iter().map(|replica| replica.replica).find(|replica| replica.role.trains())
    }

    /// The line of this job in a list of all jobs.
    pub fn summary(&self) -> JobSummary {
        let (mut result, mut headline) = (self.result.clone(), None);
        if let Some(JobResult::Failed { failure }) = &mut result {
            headline = Some(failure.to_string());
            failure.forget_output();
        }
        JobSummary {
            name: self.name.clone(),
            uid: self.uid.clone(),
            state: self.state,
            strategy: self.spec.strategy,
            replica_num: self.members(),
            restarts: self.restarts.total(),
            result,
            headline,
            queued_behind: self.queued_behind.clone(),
            times: self.times.clone(),
            source: self.spec.about.source.clone(),
        }
    }

    /// The view with the state of its result, even if the master still shows `stopping`. `None` without a result.
    pub fn as_ended(mut self) -> Option<Self> {
        self.state = self.result.as_ref()?.state();
        Some(self)
    }
}

/// A job in a list of all jobs.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSummary {
    /// The job's name.
    pub name: JobName,
    /// Unique id. A later job with the same name has another uid.
    pub uid: String,
    /// The job's state.
    pub state: JobState,
    /// How the replicas train together.
    pub strategy: Strategy,
    /// The number of replicas in the current start.
    pub replica_num: usize,
    /// How often the gang has restarted, counted or not.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub restarts: u32,
    /// The job's result, without what its scripts printed. Absent until it is decided.
    pub result: Option<JobResult>,
    /// Why the job failed, in one sentence: if an exception ended its script, the exception. Absent unless the job failed.
    pub headline: Option<String>,
    /// The job whose gang is first, while this job waits for its turn to create pods. This job is then `pending`.
    pub queued_behind: Option<JobName>,
    /// When the job reached each step.
    pub times: JobTimes,
    /// What runs, as the client that submitted the job says: a path on the machine of the user, or the name of an image.
    pub source: Option<String>,
}

/// The answer of `GET /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobList {
    /// Differs after each change of a job. A long poll waits until `seq` differs from the number in the request. Absent
    /// in lists that a client has put together from several masters.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub seq: u64,
    /// All jobs, ordered by name.
    pub jobs: Vec<JobSummary>,
}
