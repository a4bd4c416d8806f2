//! Changes of a running job: the number of its workers, suspension, and new code.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::code::CodeId;
use crate::elastic::Workers;

/// The body of `PATCH /v1/jobs/NAME`. Absent fields keep their values.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobPatch {
    /// The new minimum of workers. Absent: the old minimum, or `worker_num` if that is lower.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5457))]
    pub worker_min: Option<u32>,
    /// The new maximum of workers.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5457))]
    pub worker_num: Option<u32>,
    /// Whether the job is suspended. The scripts of a suspended job are stopped, and the job has no pods.
    pub suspended: Option<bool>,
    /// New code for a job that brought its code. The master must already have this code. The scripts start again with
    /// the new code. If the job has this code already, nothing changes.
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
