//! Batch sizes for each worker, with a fixed sum.

use serde::{Deserialize, Serialize};

use crate::ids::{ReplicaId, UnixMillis};

/// The smallest and the largest batch of a worker, in samples of one step. Both are at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchBounds {
    /// The smallest batch.
    pub min: u32,
    /// The largest batch.
    pub max: u32,
}

/// Batch sizes of all ranks, as a notice tells them to the scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// The number of these sizes. It determines the sizes for the whole start, also over several masters.
    pub version: u64,
    /// The sizes, by rank.
    pub sizes: Vec<u32>,
}

/// The batch sizes of a running job, as users see them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Batches {
    /// Samples of all workers together in one step.
    pub global: u32,
    /// The samples of each worker in one step, by rank.
    pub sizes: Vec<u32>,
    /// The newest change while the scripts run. Absent if the sizes are those with which they started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<BatchChange>,
    /// Why the sizes stay as they are, if something prevents a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
}

/// Why sizes changed, and what the change has achieved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchChange {
    /// When all workers had the new sizes, by the master's clock.
    pub at: UnixMillis,
    /// The sizes before, by rank.
    pub from: Vec<u32>,
    /// The worker that needed the longest time for a sample.
    pub slowest: ReplicaId,
    /// The worker that needed the shortest time for a sample.
    pub fastest: ReplicaId,
    /// How many times as long as the fastest worker the slowest needed for a sample.
    pub ratio: f64,
    /// The time of a step with the new sizes, divided by the time before. Absent until it has been measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time: Option<f64>,
}

/// Why batch sizes stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Held {
    /// The scripts do not measure their own computation.
    NotMeasured,
    /// The workers do not wait for the computation of the slowest.
    NotComputeBound,
    /// The last change has not made a step shorter.
    NoGain,
    /// The script uses another global batch than the job.
    OtherGlobalBatch {
        /// The samples of all workers in one step of the script.
        script: u64,
    },
    /// The script of this worker does not use the helper.
    NoHelper {
        /// The worker.
        replica: ReplicaId,
    },
    /// This worker has reported no step for long, although others have.
    Stalled {
        /// The worker.
        replica: ReplicaId,
    },
    /// This worker has not used new sizes, so they were withdrawn.
    NotUsed {
        /// The worker.
        replica: ReplicaId,
    },
    /// The versions that the scripts can vote on are used up.
    OutOfVersions,
}
