//! Elastic jobs: how many workers a job may have, changes of that number, and why each start of the gang began.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::code::CodeId;
use crate::failure::Failure;
use crate::ids::{Generation, ReplicaId, UnixMillis};
use crate::progress::LostSteps;

/// How many workers an elastic job may have. The job runs with any number from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Workers {
    /// With fewer workers, the job waits.
    pub min: u32,
    /// The job creates this many pods for workers.
    pub max: u32,
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max { write!(f, "{}", self.max) } else { write!(f, "{} to {}", self.min, self.max) }
    }
}

/// A number of workers as a user writes it: `4`, or `2:8` for at least 2 and at most 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerNum {
    /// The minimum, if the text names one.
    pub min: Option<u32>,
    /// The number of workers, or the maximum.
    pub max: u32,
}

/// The text is neither a number nor a range.
#[derive(Debug, thiserror::Error)]
pub enum BadWorkerNum {
    /// The text has more than one colon, or nothing before or after its colon.
    #[error("use one number, such as 4, or a minimum and a maximum, such as 2:8")]
    Shape,
    /// A part is not a number.
    #[error(transparent)]
    Number(#[from] ParseIntError),
}

impl FromStr for WorkerNum {
    type Err = BadWorkerNum;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None => Ok(Self { min: None, max: text.parse()? }),
            Some((min, max)) if min.is_empty() || max.is_empty() || max.contains(':') => Err(BadWorkerNum::Shape),
            Some((min, max)) => Ok(Self { min: Some(min.parse()?), max: max.parse()? }),
        }
    }
}

/// The body of `PATCH /v1/jobs/NAME`. Absent fields keep their values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobPatch {
    /// The new minimum of workers. Absent: the old minimum, or `worker_num` if that is lower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5457))]
    pub worker_min: Option<u32>,
    /// The new maximum of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5457))]
    pub worker_num: Option<u32>,
    /// Whether the job is suspended. The scripts of a suspended job are stopped, and the job has no pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// New code for a job that brought its code. The master must already have this code. The scripts start again with
    /// the new code. If the job has this code already, nothing changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<CodeId>,
    /// Whether the scripts start again even if `code` is absent or is the job's present code, for example because files
    /// in the job's `work_dir` have changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reload: bool,
}

impl JobPatch {
    /// Whether this change names a number of workers.
    pub fn scales(self) -> bool {
        self.worker_min.is_some() || self.worker_num.is_some()
    }

    /// Whether this change names code, or asks for a new start of the scripts.
    pub fn pushes(self) -> bool {
        self.code.is_some() || self.reload
    }

    /// The range of workers after this change.
    pub fn applied_to(self, now: Workers) -> Workers {
        let max = self.worker_num.unwrap_or(now.max);
        Workers { min: self.worker_min.unwrap_or(now.min.min(max)), max }
    }
}

/// A start of the gang, and why it began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GangChange {
    /// The number of the start.
    pub generation: Generation,
    /// When the start began, by the master's clock.
    pub at: UnixMillis,
    /// How many workers take part.
    pub workers: u32,
    /// Why the gang started.
    pub cause: ChangeCause,
    /// The steps of the previous start that are lost, if it is known that there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_steps: Option<LostSteps>,
}

/// Why the gang started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum ChangeCause {
    /// This is the job's first start.
    First,
    /// Workers joined.
    Joined {
        /// The workers that joined.
        replicas: Vec<ReplicaId>,
    },
    /// The maximum of workers was lowered.
    Shrunk,
    /// A replica left the gang, failed or was lost.
    Left {
        /// What happened to the replica.
        failure: Failure,
    },
    /// The job was suspended, and a user has resumed it.
    Resumed,
    /// A user has pushed new code.
    Pushed,
    /// A master has taken the job over. This is the first start under this master.
    TakenOver,
}

/// Maximum number of [`GangChange`]s in a job's view. The newest are kept.
pub const CHANGES_MAX: usize = 16;

impl fmt::Display for GangChange {
    /// A sentence without a full stop, such as `worker-3 was lost: node drained: going on with 3 workers (start 1.4)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, at: _, workers, cause, lost_steps } = self;
        match cause {
            ChangeCause::First => {
                return write!(f, "started with {} (start {generation})", counted(*workers));
            }
            ChangeCause::Joined { replicas } => {
                let names: Vec<String> = replicas.iter().map(ReplicaId::to_string).collect();
                write!(f, "{} joined", names.join(", "))?;
            }
            ChangeCause::Shrunk => f.write_str("fewer workers are wanted")?,
            ChangeCause::Left { failure } => write!(f, "{failure}")?,
            ChangeCause::Pushed => f.write_str("new code")?,
            ChangeCause::Resumed => f.write_str("resumed")?,
            ChangeCause::TakenOver => f.write_str("another master took over")?,
        }
        if let Some(lost) = lost_steps {
            write!(f, "; {lost}")?;
        }
        write!(f, ": going on with {} (start {generation})", counted(*workers))
    }
}

fn counted(workers: u32) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") }
}
