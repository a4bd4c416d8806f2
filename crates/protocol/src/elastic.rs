//! Elastic jobs: how many workers a job may have.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
