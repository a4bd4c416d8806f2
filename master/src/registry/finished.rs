//! Keeps the newest finished jobs, and deletes older ones, so that records and output do not grow without end.

use std::sync::Arc;
use std::time::Duration;

use protocol::ids::UnixMillis;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Jobs;
use crate::store::{JobRecord, Wish};

/// Default number of finished jobs that a master keeps.
pub const KEPT_FINISHED: usize = 1000;
/// Maximum deletions in each [`PAUSE`]. After an update of Muster, thousands of finished jobs may be above the limit. Their
/// deletion must disturb neither the store nor other jobs.
const DELETIONS_AT_ONCE: usize = 10;
/// Pause between two checks.
const PAUSE: Duration = Duration::from_secs(1);

impl Jobs {
    /// Deletes the oldest finished jobs while there are too many.
    pub(super) async fn keep_newest_finished(self: Arc<Self>) {
        let (mut arrivals, mut turn) = (self.table.arrivals(), 0);
        loop {
            arrivals.borrow_and_update();
            let surplus = surplus(self.finished(), self.kept_finished);
            // A deletion may take long, because it waits for pods on dead nodes. So each round begins at a later job, and
            // slow deletions do not hold back the others.
            let from = surplus.iter().cycle().skip(turn % surplus.len().max(1));
            from.take(surplus.len().min(DELETIONS_AT_ONCE)).for_each(|job| job.notify_one());
            turn = if surplus.len() > DELETIONS_AT_ONCE { turn + DELETIONS_AT_ONCE } else { 0 };
            if surplus.is_empty() {
                // The sender lives as long as `self`.
                let _ = arrivals.changed().await;
            }
            sleep(PAUSE).await;
        }
    }

    /// The finished jobs that count against the limit: when each has ended, and the notification for its driver to
    /// delete it.
    fn finished(&self) -> Vec<(UnixMillis, Arc<Notify>)> {
        self.table.pick(|handle, stored| Some((self.ended(&stored.record)?, Arc::clone(&handle.surplus))))
    }

    /// When a job has ended, if this master may delete the job. `None` if the job has not ended, or if a user has asked
    /// for its deletion. Also `None` if a later master or a master with another key held the job, or if the deletion
    /// would delete a user's TFJob in the cluster.
    fn ended(&self, record: &JobRecord) -> Option<UnixMillis> {
        let times = &record.ended.as_ref()?.times;
        let is_own = record.holder <= self.context.boot_id && self.context.foreign_key(record).is_none();
        let at = times.ended.or(times.finished).unwrap_or(record.accepted_at);
        (is_own && record.wish != Wish::Delete && record.spec.object_uid().is_none()).then_some(at)
    }
}

/// The finished jobs to delete, the oldest first: all but the newest `kept`.
fn surplus<T>(mut finished: Vec<(UnixMillis, T)>, kept: usize) -> Vec<T> {
    finished.sort_by_key(|(ended, _)| *ended);
    finished.truncate(finished.len().saturating_sub(kept));
    finished.into_iter().map(|(_, job)| job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_newest_finished_jobs_are_deleted_and_the_oldest_first() {
        let finished = || vec![(UnixMillis(3), "third"), (UnixMillis(1), "first"), (UnixMillis(2), "second")];
        assert_eq!(surplus(finished(), 1), ["first", "second"]);
        assert_eq!(surplus(finished(), 3), [""; 0]);
        assert_eq!(surplus(finished(), 4), [""; 0]);
        assert_eq!(surplus(finished(), 0), ["first", "second", "third"]);
    }
}
