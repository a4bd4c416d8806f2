//! Jobs that have ended, as the history keeps them after their records are deleted.

use serde::{Deserialize, Serialize};

use crate::progress::JobSeries;
use crate::timeline::Timeline;
use crate::view::{JobSummary, JobView};

/// Maximum bytes of [`PastJob::last_output`].
pub const LAST_OUTPUT_BYTES: usize = 64 * 1024;

/// The answer of `GET /v1/history/UID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PastJob {
    /// The last view of the job.
    pub view: JobView,
    /// When the job reached each step.
    pub timeline: Timeline,
    /// What the job's scripts have reported.
    pub series: JobSeries,
    /// The end of the output of the replica whose failure ended the job, at most [`LAST_OUTPUT_BYTES`]. Empty if the job
    /// did not fail.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_output: String,
}

/// The answer of `GET /v1/history`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PastJobs {
    /// The jobs that have ended, the newest first.
    pub jobs: Vec<JobSummary>,
    /// Files of the history that cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
}

/// A file of the history that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Skipped {
    /// The file's name.
    pub file: String,
    /// The reason, as the end of a sentence about the file.
    pub reason: String,
}
