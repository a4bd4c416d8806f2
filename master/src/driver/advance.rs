//! Moves the job's phase: calls `step` with the current gang, and carries out the actions.

use job::gang::Gang;
use job::phase::{self, Action, Halt, JobPhase, Seen};
use job::replica::ReplicaPhase;
use job::upkeep::Replacements;
use protocol::failure::Failure;
use protocol::ids::{Generation, UnixMillis};
use protocol::view::JobResult;
use tokio::time::Instant;
use tracing::debug;

use super::times::{self, Launches};
use super::tracked::Replica;
use super::{Driver, Next};

impl Driver {
    /// Moves the phase as far as possible, carries out the actions, and publishes the view.
    pub(super) async fn advance(&mut self) -> Next {
        let before = self.phase.clone();
        loop {
            if self.pods.has_changed().unwrap_or(false) {
                self.take_pods();
            }
            let gang = self.gang();
            self.starts.note_saved(&gang);
            let now = self.began.elapsed();
            let ask_at = self.ask_turn(&gang, now);
            let record = &self.stored.record;
            let (restarts, epoch) = (self.restarts(), record.epoch);
            let seen = Seen { gang: &gang, policy: &self.policy, restarts: &restarts, turn: &self.turn, epoch, now };
            let (phase, actions) = phase::step(self.phase.clone(), self.wished(), seen);
            let has_moved = phase != self.phase;
            let look_at = phase::next_look(&phase, &actions, seen).into_iter().chain(ask_at).min();
            // Entering the new phase drops the evidence of a failed start, so store the diagnosis first.
            self.diagnose(judged(&phase, &actions), &gang).await;
            if has_moved {
                // Measure now how long scripts have been silent: they may print something when they are stopped.
                if phase.is_late() {
                    self.silence = self.silences().await;
                }
                self.enter(phase, &gang);
            }
            for action in actions {
                let next = self.act(action).await;
                if next != Next::GoOn {
                    return next;
                }
            }
            if !has_moved {
                self.look_at = look_at;
                break;
            }
        }
        // The view of a finished job does not change.
        if !matches!(before, JobPhase::Finished { .. }) {
            self.publish_in_time(self.phase != before);
        }
        if self.is_to_be_forgotten() { self.forget().await } else { Next::GoOn }
    }

    /// Stores the diagnosis of this failure if none is stored yet. Without a failure, drops the stored diagnosis, for
    /// example when a halted job receives new code.
    async fn diagnose(&mut self, failure: Option<&Failure>, gang: &Gang) {
        match failure {
            Some(failure) if self.failed.is_none() => {
                self.failed = Some(self.failed_start(failure.clone(), gang).await);
            }
            Some(_) => {}
            None => self.failed = None,
        }
    }

    /// Enters a phase. `gang` was observed in the previous phase.
    fn enter(&mut self, phase: JobPhase, gang: &Gang) {
        self.starts.note((&self.phase, &phase), gang, &self.policy);
        let launches = Launches {
            are_all_seen: self.stored.record.epoch == 1,
            are_complete: gang.all(ReplicaPhase::was_launched),
            last: phase.generation().and_then(|generation| self.last_launch(generation)),
        };
        times::reach(&mut self.times, (&self.phase, &phase), &launches, self.context.store.now());
        match &phase {
            JobPhase::Pending { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Stopping { .. }
            | JobPhase::Releasing { .. } => {}
            // One script may have failed before all scripts ran, and then the start never reached `Running`.
            JobPhase::Halted(Halt { generation, .. }) => self.starts.note_running(*generation, gang),
            // After a resume, new pods do not count as replacements of lost pods.
            JobPhase::Suspended { .. } => {
                self.replicas.values_mut().for_each(|replica| replica.replacements = Replacements::default());
            }
            JobPhase::Queued { .. } => self.replicas.values_mut().for_each(Replica::queue),
            // Long polls begin only now, because they would slow down the start of a large gang.
            JobPhase::Running { generation, .. } => {
                self.starts.note_running(*generation, gang);
                self.replicas.values().for_each(|replica| replica.watch_run(Some(*generation)));
            }
            JobPhase::Restarting { .. } => {
                self.replicas.values_mut().for_each(Replica::begin_again);
                self.follow_pods();
            }
            JobPhase::Finished { .. } => {
                self.complete_logs();
                if self.stored.record.ended.is_some() {
                    self.replicas.values_mut().for_each(Replica::finish);
                }
                self.forget_at = self.time_left().map(|left| Instant::now() + left);
            }
        }
        let generation = phase.generation();
        if generation.is_some() || matches!(phase, JobPhase::Restarting { .. }) {
            self.current_start = generation;
        }
        let generation = generation.map(tracing::field::display);
        debug!(job = %self.stored.name(), state = %phase.state(), generation, "job moved");
        self.phase = phase;
    }

    /// When the last exec.py of this start was started, if the agent of every member has reported the time.
    fn last_launch(&self, start: Generation) -> Option<UnixMillis> {
        let members = self.replicas.values().filter(|replica| replica.is_member(start));
        let starts = members.map(|replica| replica.seen.agent.status()?.started_at);
        starts.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

/// The failure that one of these actions records, or after which the job is halted.
fn judged<'a>(phase: &'a JobPhase, actions: &'a [Action]) -> Option<&'a Failure> {
    if let JobPhase::Halted(Halt { failure, .. }) = phase {
        return Some(failure);
    }
    actions.iter().find_map(|action| match action {
        Action::RecordRestart(failure) | Action::Conclude(JobResult::Failed { failure }) => Some(failure),
        Action::Conclude(JobResult::Succeeded | JobResult::Cancelled)
        | Action::RecordHalt
        | Action::RecordSuspension
        | Action::Keep(_)
        | Action::Enrol { .. }
        | Action::Configure(_)
        | Action::Launch(_)
        | Action::StopRuns { .. }
        | Action::ReleasePods
        | Action::DeletePods(_) => None,
    })
}
