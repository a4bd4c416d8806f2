//! Batch sizes for each worker, with a fixed sum.

use serde::{Deserialize, Serialize};

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
