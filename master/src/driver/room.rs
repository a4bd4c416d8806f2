//! Tells the other jobs of this master what the job's gang needs, and asks whether the gang may create pods now.

use std::cmp::Reverse;
use std::time::Duration;

use job::gang::Gang;
use job::need::Need;
use job::phase::{JobPhase, Restart};
use job::turns::{Post, Rank, Turn};
use job::wait::Resources;

use super::machine::Machine;
use crate::store::JobRecord;
use crate::turns::Lane;

/// The turn of one job.
pub(super) struct Room {
    seat: Lane,
    /// The resources that the job's pods ask for; `None` if they need no room, or the job has finished.
    asks: Option<Resources>,
    /// Whether the gang may create pods now.
    turn: Turn,
}

impl Room {
    pub(super) fn new(seat: Lane, asks: Option<Resources>) -> Self {
        Self { seat, asks, turn: Turn::Go }
    }

    pub(super) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Whether another job may change the turn of this job.
    pub(super) fn is_needed(&self) -> bool {
        self.asks.is_some()
    }

    /// Waits until the job's turn changes.
    pub(super) async fn changed(&mut self) {
        self.seat.changed_from(&self.turn).await;
    }

    /// Asks for the job's turn, and stores it. `holds` is whether the job has pods, or pods that may still appear.
    /// Returns when to ask again, as the time since the driver began. If the back end's pods need no room, it is always
    /// the job's turn.
    pub(super) fn ask(
        &mut self,
        gang: &Gang<'_>,
        holds: bool,
        record: &JobRecord,
        machine: &Machine,
    ) -> Option<Duration> {
        let asks = self.asks.clone()?;
        if machine.is_finished() {
            self.seat.leave();
            self.asks = None;
            return None;
        }
        let rank =
            Rank { priority: Reverse(record.priority), accepted_at: record.accepted_at, uid: record.uid.clone() };
        let need = gathers(machine).then(|| Need::of(gang, machine.policy()));
        let (turn, again) = self.seat.post(Post { name: record.spec.name.clone(), rank, asks, holds, need });
        self.turn = turn;
        again.map(|at| at.saturating_duration_since(machine.began()))
    }
}

/// Whether the gang needs pods for its next start. Lost pods are replaced during the pause before a restart. If the
/// next start uses no pods of the last start, the gang needs pods only after the pause.
fn gathers(machine: &Machine) -> bool {
    if let JobPhase::Restarting(Restart { until, is_empty, .. }) = machine.phase() {
        return !is_empty || *until <= machine.elapsed();
    }
    matches!(machine.phase(), JobPhase::Pending { .. } | JobPhase::Queued { .. })
}
