//! Batch sizes for each worker, with a fixed sum: what a job asks for, and what its scripts use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::ids::{ReplicaId, Role, UnixMillis};

/// Maximum global batch. The list of the sizes of all workers then fits into one environment variable.
pub const GLOBAL_BATCH_MAX: u32 = 10_000_000;
/// The key of TF_CONFIG with the sizes.
pub const BATCH_SIZE_LIST_KEY: &str = "batch_size_list";

/// How the samples of each step are divided among the workers. A chief without parameter servers counts as a worker.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Batching {
    /// Samples of all workers together in one step. Absent: the sum of the sizes of all workers, if each has one size.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10_000_000))]
    pub global_batch: Option<u32>,
    /// Minimum batch of a worker whose group names none. Absent: a quarter of an equal share, but at most 16.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub min_batch: Option<u32>,
    /// Maximum batch of a worker whose group names none. Absent: the global batch.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub max_batch: Option<u32>,
    /// Each batch is a multiple of this number. Absent: 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub multiple: Option<u32>,
    /// The form of the list of sizes in TF_CONFIG.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub list: BatchList,
}

impl Batching {
    /// Each batch is a multiple of this number.
    pub fn unit(&self) -> u32 {
        self.multiple.unwrap_or(1)
    }
}

/// The form of `batch_size_list` in TF_CONFIG. The project Scavenger uses both forms: its README shows a text, and its
/// code reads a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BatchList {
    /// A text such as `"[64,32]"`: the sizes of the chief and of the workers.
    #[default]
    Text,
    /// A list of numbers: a 0 for each parameter server, then the sizes of the chief and of the workers.
    List,
}

impl BatchList {
    /// `batch_size_list` of a job with these sizes, by rank, and this number of parameter servers.
    pub fn of(self, sizes: &[u32], servers: usize) -> Value {
        match self {
            Self::Text => Value::from(Value::from(sizes).to_string()),
            Self::List => Value::from([&vec![0; servers], sizes].concat()),
        }
    }
}

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

impl BatchBounds {
    /// These bounds with a maximum of at most `limit`, if there is a limit.
    #[must_use]
    pub fn at_most(self, limit: Option<u32>) -> Self {
        Self { max: limit.map_or(self.max, |limit| self.max.min(limit)), ..self }
    }

    /// The smallest and the largest multiple of `multiple` within these bounds, divided by `multiple`. `None` if no multiple
    /// is within them.
    pub fn in_multiples(self, multiple: u32) -> Option<(u32, u32)> {
        let (low, high) = (self.min.div_ceil(multiple), self.max / multiple);
        (low <= high).then_some((low, high))
    }
}

/// The text is not a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a batch: write a number of samples from 1, such as 64, or a range, such as 16..32")]
pub struct NoBatch(String);

impl FromStr for BatchBounds {
    type Err = NoBatch;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min @ 1..), Ok(max)) if min <= max => Ok(Self { min, max }),
            (_, _) => Err(NoBatch(text.to_owned())),
        }
    }
}

/// A job's batches are impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadBatching {
    /// The global batch is 0 or too large.
    #[error("global-batch is {0}: use a number from 1 to {GLOBAL_BATCH_MAX}")]
    Global(u32),
    /// There are sizes or bounds, but no global batch.
    #[error(
        "the batches need a sum: give global-batch, or one fixed batch for each worker, such as --worker batch=64:2"
    )]
    NoGlobal,
    /// The sizes are not positive, or not in order.
    #[error("a batch of {min} to {max} is impossible: use at least 1, and a minimum of at most the maximum")]
    Bounds {
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
    /// The multiple is 0, or the global batch is no multiple.
    #[error("global-batch {global} is not a multiple of {multiple}: all batches are to be multiples of {multiple}")]
    Multiple {
        /// The global batch.
        global: u32,
        /// The multiple.
        multiple: u32,
    },
    /// Bounds contain no multiple.
    #[error("the bounds of a batch, {min} to {max}, contain no multiple of {multiple}")]
    NoMultiple {
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
        /// The multiple.
        multiple: u32,
    },
    /// The smallest batches together exceed the global batch.
    #[error("a global batch of {global} is too small for {workers} workers: their smallest batches have {sum} samples")]
    TooSmall {
        /// The global batch.
        global: u32,
        /// Number of workers.
        workers: usize,
        /// Sum of the minima.
        sum: u64,
    },
    /// The largest batches together are less than the global batch.
    #[error(
        "a global batch of {global} is too large for {workers} workers: their largest batches may have only {sum} samples"
    )]
    TooLarge {
        /// The global batch.
        global: u32,
        /// Number of workers.
        workers: usize,
        /// Sum of the maxima.
        sum: u64,
    },
    /// The speeds of workers cannot be compared.
    #[error("some workers have GPUs and some have none, so their first batches are unknown: give each group a batch")]
    SomeGpus,
    /// A role without batches has a batch.
    #[error("a group of role {0} has a batch, but only workers and a chief without parameter servers train")]
    Role(Role),
}

impl fmt::Display for Held {
    /// A sentence without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMeasured => f.write_str("the scripts do not measure their computation with job.measure()"),
            Self::NotComputeBound => f.write_str("the steps do not wait for the computation of the slowest worker"),
            Self::NoGain => f.write_str("the last change has not made a step shorter"),
            Self::OtherGlobalBatch { script } => write!(f, "the script uses a global batch of {script}"),
            Self::NoHelper { replica } => write!(f, "{replica} sends no reports: its script does not use muster.py"),
            Self::Stalled { replica } => write!(f, "{replica} has reported no step for a long time"),
            Self::NotUsed { replica } => write!(f, "{replica} did not take the last sizes that it was sent"),
            Self::NotAgreed => f.write_str("the scripts do not vote on new sizes with job.signal() and job.step()"),
            Self::OutOfVersions => f.write_str("this start has had too many changes"),
        }
    }
}

/// Batch sizes of all ranks, as a notice sends them to the scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// The number of these sizes. During one start, the same number always means the same sizes, even under several
    /// masters.
    pub version: u64,
    /// The sizes, by rank.
    pub sizes: Vec<u32>,
}

/// What a master tells the script's helper. Each notice replaces the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The newest batch sizes. Absent: forget sizes that the script does not use yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
}

/// The batch sizes of a running job, as users see them.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Batches {
    /// Samples of all workers together in one step.
    pub global: u32,
    /// The samples of each worker in one step, by rank.
    pub sizes: Vec<u32>,
    /// The newest change while the scripts run. Absent if the sizes are those with which they started.
    pub changed: Option<BatchChange>,
    /// Why the sizes stay as they are, if something prevents a change.
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
    /// The slowest worker's time for a sample, divided by the fastest worker's time.
    pub ratio: f64,
    /// The time of a step with the new sizes, divided by the time with the old sizes. Absent until it has been
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time: Option<f64>,
}

// No number is NaN, so each change equals itself.
impl Eq for BatchChange {}

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
    /// All workers have received new sizes, but their scripts have not agreed on them.
    NotAgreed,
    /// The versions that the scripts can vote on are used up.
    OutOfVersions,
}
