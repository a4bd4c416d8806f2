//! When a driver acts although it has heard nothing: at a time limit, where something is overdue, and when its job is to be
//! forgotten.

use std::time::Duration;

use tokio::time::Instant;

use super::replica::Replica;
use super::{Driver, age};
use crate::job::observation::Presence;
use crate::job::phase::JobPhase;
use crate::store::Wish;

impl Driver {
    /// When to look again although nothing was heard. What is overdue was acted upon, and is looked at again later.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let later = Instant::now() + self.policy.release_timeout;
        // Nothing is heard of a pod that has survived being asked to go.
        let is_leaving =
            |replica: &Replica| replica.deletion_asked_at.is_some() && replica.seen.presence() == Presence::Live;
        let is_emptied = matches!(self.phase, JobPhase::Finished { .. }) && self.replicas.values().any(is_leaving);
        if self.is_to_be_forgotten() || is_emptied {
            return Some(later);
        }
        let deadline = match self.phase.deadline(&self.policy) {
            Some(deadline) => self.began + deadline,
            None => self.forget_at?,
        };
        Some(if deadline <= Instant::now() { later } else { deadline })
    }

    pub(super) fn is_to_be_forgotten(&self) -> bool {
        let is_its_time = self.forget_at.is_some_and(|time| time <= Instant::now());
        matches!(self.phase, JobPhase::Finished { .. }) && (self.stored.record.wish == Wish::Delete || is_its_time)
    }

    /// How long a finished job is still kept, if there is an end to it.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let ttl = Duration::from_secs(self.stored.record.spec.run_policy.ttl_after_finished_seconds?.into());
        Some(ttl.saturating_sub(self.times.finished.map_or(Duration::ZERO, age)))
    }
}
