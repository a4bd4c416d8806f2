//! What the master shows of a job: its phase, its replicas, its result, and when each step was reached.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::agent::ExitReport;
use crate::failure::{Failure, Restarts};
use crate::ids::{Generation, JobName, ReplicaId, UnixMillis};
use crate::job::JobSpec;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Its pods come up.
    Pending,
    /// All agents answer; each is given its environment and then its start.
    Starting,
    /// Every exec.py has been started.
    Running,
    /// A start of its gang has ended; what still runs of it is being stopped.
    Stopping,
    /// All replicas restart after a failed start: lost pods are replaced, and a pause is kept.
    Restarting,
    /// It ended as it should.
    Succeeded,
    /// It did not.
    Failed,
    /// A user ended it.
    Cancelled,
}

impl JobState {
    /// All states, in the order in which a job comes to them.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::Restarting,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether nothing will change any more.
    pub fn is_finished(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
            Self::Pending | Self::Starting | Self::Running | Self::Stopping | Self::Restarting => false,
        }
    }

    /// The name as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Restarting => "restarting",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a job ended. Written once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum JobResult {
    /// As it should.
    Succeeded,
    /// For this reason.
    Failed {
        /// The first failure in time; those after it are echoes.
        failure: Failure,
    },
    /// By a user's wish.
    Cancelled,
}

impl JobResult {
    /// The state that shows this result.
    pub fn state(&self) -> JobState {
        match self {
            Self::Succeeded => JobState::Succeeded,
            Self::Failed { .. } => JobState::Failed,
            Self::Cancelled => JobState::Cancelled,
        }
    }
}

/// Where a replica stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// Its pod is asked for and has no address yet.
    Requested,
    /// Its pod has a place, and its agent has not answered.
    Scheduled,
    /// Its agent answers.
    Joined,
    /// Its agent has the environment of this generation.
    Configured,
    /// Its exec.py runs.
    Running,
    /// Its exec.py has ended.
    Exited,
    /// Its pod is gone, and its run with it.
    Lost,
}

impl ReplicaState {
    /// The name as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Scheduled => "scheduled",
            Self::Joined => "joined",
            Self::Configured => "configured",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Lost => "lost",
        }
    }
}

/// One replica, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaView {
    /// Role and index, such as `worker-2`.
    pub replica: ReplicaId,
    /// Where it stands.
    pub state: ReplicaState,
    /// Its pod's name.
    pub pod: String,
    /// The address of its TensorFlow server, `ip:port`, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Why it waits or was lost, in the back end's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The process id of exec.py, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When its exec.py was started, by its agent's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<UnixMillis>,
    /// How its exec.py ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitReport>,
}

/// When each step was reached, by the master's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobTimes {
    /// The record was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<UnixMillis>,
    /// The last agent answered: the gang is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<UnixMillis>,
    /// Every agent has its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<UnixMillis>,
    /// Every exec.py has been started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<UnixMillis>,
    /// The end was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<UnixMillis>,
    /// Nothing runs any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<UnixMillis>,
}

/// One job, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    /// Its name.
    pub name: JobName,
    /// Differs from that of any other job, also of one that had the same name before.
    pub uid: String,
    /// Raised at each change; what a long poll waits for.
    pub seq: u64,
    /// Where it stands.
    pub state: JobState,
    /// The current start of its gang, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
    /// Which starts of its gang have failed, and why.
    #[serde(default, skip_serializing_if = "Restarts::is_empty")]
    pub restarts: Restarts,
    /// What was asked for.
    pub spec: JobSpec,
    /// Every replica, in the order of roles and indexes.
    pub replicas: Vec<ReplicaView>,
    /// When.
    pub times: JobTimes,
}

impl JobView {
    /// The job as it ended, once its result is decided. Its state is `stopping` until its pods have ended too; here it is
    /// the one that shows the result.
    pub fn as_ended(mut self) -> Option<Self> {
        self.state = self.result.as_ref()?.state();
        Some(self)
    }
}

/// The answer of `GET /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobList {
    /// In the order of their names.
    pub jobs: Vec<JobView>,
}

/// The answer of `GET /v1/master`: what a client has to know before it submits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MasterView {
    /// The master's version.
    pub version: String,
    /// Where its pods live.
    pub backend: BackendKind,
    /// The number of the user that it runs as, and that scripts run as with it, where its pods are processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// Where pods live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// As processes of the master's host, which run a folder's exec.py.
    Process,
    /// In Kubernetes, which run an image's exec.py.
    Kubernetes,
}

/// One line of a merged log stream, itself one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// Who printed it.
    pub replica: ReplicaId,
    /// The byte offset in that replica's output just behind this line: ask from here to go on.
    pub offset: u64,
    /// The text without its newline; invalid UTF-8 replaced. A line of more than [`LOG_LINE_BYTES`] comes in pieces.
    pub line: String,
    /// Whether this is the end of a line that is still being written, as a progress bar is, and comes again as a whole.
    /// Only streams that ask for such lines have them. `offset` is then where the line begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

/// Most bytes of output in one [`LogLine`].
pub const LOG_LINE_BYTES: usize = 16 * 1024;

/// Most bytes of a line that is still being written: its newest. A terminal shows no more of it.
pub const UNFINISHED_BYTES: usize = 4 * 1024;
