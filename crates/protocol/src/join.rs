//! The message with which the agent of a bare machine joins a job, shows that it is alive, or leaves the job. Also the
//! master's answer.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::elastic::Workers;
use crate::ids::ReplicaId;
use crate::lease::Lease;
use crate::view::JobState;

/// The body of `POST /v1/jobs/NAME/members`. The first agent that joins also submits the job.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Identifies the process of the agent, as in the agent's status.
    pub boot_id: String,
    /// The address at which the master reaches the agent. The replica's TensorFlow server is on the same host, at
    /// `tensorflow_port`. Other members connect to it there.
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = r"^([0-9.]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$"))]
    pub address: SocketAddr,
    /// The port of the TensorFlow server.
    #[cfg_attr(feature = "openapi", schema(value_type = u16, minimum = 1))]
    pub tensorflow_port: NonZeroU16,
    /// How many workers the job may have. If `workers`, `nproc_per_node`, `lease_seconds` or `max_restarts` differ from
    /// the existing job's, the agent is refused. Absent: the agent only joins an existing job.
    pub workers: Option<Workers>,
    /// Number of processes of the script on each machine. Absent: 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64))]
    pub nproc_per_node: Option<u32>,
    /// The job's lease; see [`crate::run_policy::RunPolicy::lease_seconds`]. Absent: the lease of the existing job, or
    /// the default for a new job.
    pub lease_seconds: Option<u32>,
    /// The job's maximum number of restarts. Absent: that of the existing job, or the default for a new job.
    pub max_restarts: Option<u32>,
    /// The uid of the job, from the master's last answer. Absent in the agent's first message.
    pub uid: Option<String>,
    /// The agent's last place. The agent gets this place again if the place is free.
    pub place: Option<ReplicaId>,
    /// Why the agent leaves. Only in the agent's last message, after all processes of its run have ended.
    pub left: Option<Left>,
}

/// Why an agent leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Left {
    /// A master asked the agent to finish.
    Finished,
    /// A signal told the agent to end.
    Terminated,
}

/// The answer to a [`JoinRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JoinAnswer {
    /// The agent has a place. The agent repeats its message if no master has polled it for the time of the lease.
    Joined {
        /// The job's uid.
        uid: String,
        /// The agent's place.
        place: ReplicaId,
        /// The SHA-256, in hex, of the token that the agent must require from its callers.
        token_sha256: String,
        /// The job's lease.
        lease_seconds: u32,
    },
    /// No place is free, or the agent has left. An agent that waits for a place repeats its message.
    Waiting {
        /// The job's uid.
        uid: String,
    },
    /// The job has ended, so the agent must end too.
    Ended {
        /// The final state.
        outcome: JobState,
        /// Why the job failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

/// How long an agent waits before it repeats its message, if the master did not answer or had no free place.
pub fn pause(lease: Lease) -> Duration {
    lease.length() / 5
}
