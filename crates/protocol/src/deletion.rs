//! What a deletion removes besides a job's record and output.

use serde::{Deserialize, Serialize};

/// The answer to the deletion of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Deletion {
    /// The number of files that the job's scripts have written into the master's copy of the job's folder. These files
    /// are removed with the copy.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub written_files: u64,
}
