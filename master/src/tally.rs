//! Counts what happens to the jobs of this master.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use protocol::spent::Spent;
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
    /// How the time of the jobs that have ended was spent, in seconds, by the name of each part.
    pub(crate) seconds: Family<[(&'static str, &'static str); 1], Counter<f64, AtomicU64>>,
    /// See [`StartTimes::gathering`], in seconds.
    pub(crate) gathering: Durations,
    /// See [`StartTimes::starting`], in seconds.
    pub(crate) starting: Durations,
}

/// How long a start took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StartTimes {
    /// From the acceptance of the job, or the end of its last start, until the gang was complete. Includes the time in
    /// the queue and the pause before a restart.
    pub(crate) gathering: Duration,
    /// From the complete gang until every exec.py was started.
    pub(crate) starting: Duration,
}

/// A histogram of durations in seconds, from 0.05 s to 109 minutes.
#[derive(Debug, Clone)]
pub(crate) struct Durations(pub(crate) Histogram);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(0.05, 2.0, 18)))
    }
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

    /// Counts a start whose scripts were all started.
    pub(crate) fn start(&self, StartTimes { gathering, starting }: StartTimes) {
        self.gathering.0.observe(gathering.as_secs_f64());
        self.starting.0.observe(starting.as_secs_f64());
    }

    /// Counts how the time of a job that has ended was spent.
    pub(crate) fn spend(&self, spent: &Spent) {
        for part in spent.parts() {
            let time = Duration::from_millis(part.millis).as_secs_f64();
            self.seconds.get_or_create(&[("spent", part.name)]).inc_by(time);
        }
    }
}
