//! What the processes of a run use: processor time and memory.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::ids::{Generation, ReplicaId, UnixMillis};

/// What all processes of a run use, as its agent reads it from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time since the run began, in microseconds, including ended child processes.
    pub cpu_us: u64,
    /// Resident memory in bytes. Memory that several processes share counts for each of them.
    pub rss_bytes: u64,
    /// The memory limit of the container in bytes. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
}

/// The newest usage of a replica's run.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaUsage {
    /// Role and index, such as `worker-2`.
    pub replica: ReplicaId,
    /// When the master received these numbers, by the master's clock.
    pub at: UnixMillis,
    /// The start to which the run belongs.
    pub generation: Generation,
    /// Processor time since the previous numbers, in percent of one core. Absent for the first numbers of a run.
    pub cpu_percent: Option<u32>,
    /// Resident memory in bytes. Memory that several processes share counts for each of them.
    pub rss_bytes: u64,
    /// The memory limit of the container in bytes. Absent if there is none.
    pub memory_limit: Option<u64>,
}
