//! When a driver acts without an event: at a time limit, when a pod is overdue, and at the end of a time to live.

use std::sync::Arc;
use std::time::Duration;

use job::observation::Presence;
use job::phase::JobPhase;
use tokio::time::Instant;
use tracing::warn;

use super::Driver;
use super::tracked::Replica;
use crate::error_chain::error_chain;
use crate::store::Wish;

/// Interval for renewing the network policy of a job's pods, in case somebody has deleted it.
pub(super) const PREPARE_INTERVAL: Duration = Duration::from_secs(300);

impl Driver {
    /// The next time to act without an event, including the next view and the next renewal of the network policy.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let prepare_at = Some(self.prepare_at).filter(|_| self.has_live_pod());
        let look_at = self.look_at.map(|at| self.began + at);
        self.act_at().into_iter().chain(prepare_at).chain(look_at).chain(self.publish_at).min()
    }

    fn has_live_pod(&self) -> bool {
        self.replicas.values().any(|replica| replica.seen.presence() == Presence::Live)
    }

    /// Renews the NetworkPolicy of a job that has pods. No watch reports the policy's deletion.
    pub(super) fn prepare_again(&mut self) {
        if Instant::now() < self.prepare_at {
            return;
        }
        self.prepare_at = Instant::now() + PREPARE_INTERVAL;
        if !self.has_live_pod() {
            return;
        }
        let (context, job) = (Arc::clone(&self.context), self.stored.key());
        self.tasks.spawn(async move {
            if let Err(error) = context.backend.prepare(&job).await {
                warn!(job = %job.name, error = error_chain(&error), "could not renew the job's network policy");
            }
        });
    }

    /// The next time limit of the phase, or the end of the time to live. If that time has passed, the driver has already
    /// acted, and checks again after `release_timeout`.
    fn act_at(&self) -> Option<Instant> {
        let later = Instant::now() + self.policy.release_timeout;
        // No event reports that a pod has survived its deletion.
        let is_leaving =
            |replica: &Replica| replica.deletion_asked_at.is_some() && replica.seen.presence().has_containers();
        let is_emptied = matches!(self.phase, JobPhase::Finished { .. }) && self.replicas.values().any(is_leaving);
        if self.is_to_be_forgotten() || is_emptied {
            return Some(later);
        }
        let deadline = self.phase.deadline(&self.policy).map(|deadline| self.began + deadline).or(self.forget_at)?;
        Some(if deadline <= Instant::now() { later } else { deadline })
    }

    pub(super) fn is_to_be_forgotten(&self) -> bool {
        let is_its_time = self.forget_at.is_some_and(|time| time <= Instant::now());
        matches!(self.phase, JobPhase::Finished { .. }) && (self.stored.record.wish == Wish::Delete || is_its_time)
    }

    /// The remaining time to live of a finished job, if it has one.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let ttl = Duration::from_secs(self.stored.record.spec.run_policy.ttl_after_finished_seconds?.into());
        Some(ttl.saturating_sub(self.times.finished.map_or(Duration::ZERO, |finished| self.context.age(finished))))
    }
}
