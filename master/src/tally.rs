//! Counts what happens to the jobs of this master.

use prometheus_client::metrics::counter::Counter;
use protocol::view::JobResult;

/// How often something has happened to a job under this master. A new master begins at 0, and does not count again what
/// an earlier master has done.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Jobs that were accepted.
    pub(crate) created: Counter,
    /// Jobs whose record was deleted.
    pub(crate) deleted: Counter,
    /// Jobs that succeeded.
    pub(crate) successful: Counter,
    /// Jobs that failed.
    pub(crate) failed: Counter,
    /// Restarts after a failure.
    pub(crate) restarted: Counter,
}

impl Tally {
    /// Counts the end of a job.
    pub(crate) fn end(&self, result: &JobResult) {
        match result {
            JobResult::Succeeded => drop(self.successful.inc()),
            JobResult::Failed { .. } => drop(self.failed.inc()),
            JobResult::Cancelled => {}
        }
    }
}
