//! The part of a record for a job that waits for new code after its script has failed.

use std::time::Duration;

use protocol::failure::FailedStart;
use protocol::ids::UnixMillis;
use serde::{Deserialize, Serialize};

/// A failed start after which a job waits for new code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halted {
    /// When the wait began.
    pub since: UnixMillis,
    /// How often a user had pushed new code when the failed start began.
    pub pushes: u32,
    /// The start, with its failure. A later master may be unable to observe this failure.
    pub failed: FailedStart,
}

impl Halted {
    /// How much longer the job waits after `now`, if it waits for `wait` in total.
    pub fn left(&self, wait: Duration, now: UnixMillis) -> Duration {
        wait.saturating_sub(now.since(self.since))
    }
}
