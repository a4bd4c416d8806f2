//! Tells the other jobs of this master what the gang needs, and asks whether it may create pods now.

use std::cmp::Reverse;
use std::time::Duration;

use job::gang::Gang;
use job::need::Need;
use job::observation::Presence;
use job::phase::JobPhase;
use job::turns::{Post, Rank};

use super::Driver;
use super::tracked::Replica;

impl Driver {
    /// Asks for the job's turn, and stores it. Returns when to ask again, as the time since the driver began. If the
    /// back end's pods need no room, it is always the job's turn.
    pub(super) fn ask_turn(&mut self, gang: &Gang, now: Duration) -> Option<Duration> {
        let asks = self.asks.clone()?;
        if matches!(self.phase, JobPhase::Finished { .. }) {
            self.channels.seat.leave();
            self.asks = None;
            return None;
        }
        let record = &self.stored.record;
        let rank =
            Rank { priority: Reverse(record.priority), accepted_at: record.accepted_at, uid: record.uid.clone() };
        // A requested pod may still appear. A pod for which a quota has no room does not.
        let is_requested = |replica: &Replica| replica.requested_at().is_some() && replica.seen.wait.is_none();
        let holds = gang.any_place(|place| place.pod != Presence::Absent && place.pod.has_containers())
            || self.replicas.values().any(is_requested);
        let need = self.gathers(now).then(|| Need::of(gang, &self.policy));
        let name = record.spec.name.clone();
        let (turn, again) = self.channels.seat.post(Post { name, rank, asks, holds, need });
        self.turn = turn;
        again.map(|at| at.saturating_duration_since(self.began))
    }

    /// Whether the gang needs pods for its next start. During the pause before a restart, it does not need them yet.
    fn gathers(&self, now: Duration) -> bool {
        match &self.phase {
            JobPhase::Pending { .. } | JobPhase::Queued { .. } => true,
            JobPhase::Restarting { until, .. } => *until <= now,
            JobPhase::Starting { .. }
            | JobPhase::Running { .. }
            | JobPhase::Stopping { .. }
            | JobPhase::Halted { .. }
            | JobPhase::Suspended { .. }
            | JobPhase::Releasing { .. }
            | JobPhase::Finished { .. } => false,
        }
    }
}
