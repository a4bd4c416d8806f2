//! Moves the job's phase: calls `step` with the current gang, and lets the parts of the driver carry out the actions.

use std::time::Duration;

use job::gang::Gang;
use job::phase::{self, Action, Halt, JobEvent, JobPhase, PodSelection, Seen};
use job::policy::Policy;
use job::upkeep::Upkeep;
use protocol::failure::Failure;
use protocol::ids::Role;
use protocol::stacks::sentence;
use protocol::view::JobResult;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::machine::{Current, Machine};
use super::pods::{self, ReplicaTable};
use super::record::Ledger;
use super::room::Room;
use super::shown::Scene;
use super::starts::Entered;
use super::{Driver, Stop};
use crate::agents::client::STACKS_TIMEOUT;
use crate::store::Wish;

impl Driver {
    /// Moves the phase as far as possible, carries out the actions, and publishes the view.
    pub(super) async fn advance(&mut self) -> Result<(), Stop> {
        let before = self.machine.phase().clone();
        while self.step().await? {}
        self.machine.rest(self.replicas.ids().len());
        // The view of a finished job does not change.
        if !matches!(before, JobPhase::Finished { .. }) {
            self.publish(*self.machine.phase() != before);
        }
        if self.machine.phase().result().is_some() {
            self.keep_in_history();
        }
        if self.is_to_be_forgotten() { self.forget().await } else { Ok(()) }
    }

    /// Calls `step` once, and carries out the actions. Returns whether the phase has moved.
    async fn step(&mut self) -> Result<bool, Stop> {
        if self.pods.have_changed() {
            self.take_pods();
        }
        let Self { machine, ledger, replicas, runs, starts, balance, room, .. } = self;
        let mut gang = replicas.gang(machine.horizon());
        gang.note_too_large(balance.too_large(&gang, ledger.get()));
        starts.note_saved(&gang);
        let (phase, actions) = step(&gang, replicas.hold_room(), ledger, machine, room);
        // Entering the new phase drops the evidence of a failed start, so store the diagnosis first.
        diagnose(judged(&phase, &actions), &gang, ledger, replicas, machine.policy()).await;
        let has_moved = phase != *machine.phase();
        if has_moved {
            // Measure now how long scripts have been silent: they may print something when they are stopped.
            if phase.is_late() && !machine.phase().is_late() {
                let silence = replicas.silences(machine.horizon()).await;
                let stacks = Box::pin(runs.stacks(replicas, machine.horizon(), STACKS_TIMEOUT)).await;
                ledger.note_deadline(silence, (!stacks.is_empty()).then(|| sentence(&stacks)));
            }
            let last_launch = phase.generation().and_then(|start| pods::last_launch(replicas, start));
            let entered = Entered {
                gang: &gang,
                policy: machine.policy(),
                record: ledger.get(),
                failure: ledger.failed().map(|failed| &failed.failure),
                last_launch,
                now: ledger.now(),
            };
            let times = starts.enter((machine.phase(), &phase), &entered);
            times.into_iter().for_each(|times| ledger.context().tally.start(times));
            self.enter(phase);
        }
        for action in actions {
            self.act(action).await?;
        }
        Ok(has_moved)
    }

    /// Enters a phase.
    fn enter(&mut self, phase: JobPhase) {
        let record = self.ledger.get();
        self.replicas.enter(&phase, record.ended.is_some());
        if matches!(phase, JobPhase::Restarting { .. }) {
            self.pods.follow(&mut self.replicas, &record.spec, self.machine.policy(), &self.code);
        }
        self.ledger.enter(&phase);
        if matches!(phase, JobPhase::Finished { .. }) {
            self.pods.complete_logs(&mut self.replicas, &mut self.inbox.tasks);
            self.machine.forget_at(self.time_left().map(|left| Instant::now() + left));
        }
        let generation = phase.generation().map(tracing::field::display);
        debug!(job = %self.ledger.name(), state = %phase.state(), generation, "job moved");
        self.machine.enter(phase);
    }

    /// The remaining time to live of a finished job, if it has one.
    fn time_left(&self) -> Option<Duration> {
        let record = self.ledger.get();
        let ttl = Duration::from_secs(record.spec.run_policy.ttl_after_finished_seconds?.into());
        let age = self.starts.times().finished.map_or(Duration::ZERO, |finished| self.ledger.now().since(finished));
        Some(ttl.saturating_sub(age))
    }

    /// Carries out an action. Slow work runs in tasks, which report their results to the driver.
    pub(super) async fn act(&mut self, action: Action) -> Result<(), Stop> {
        let current @ Current { record, .. } = Current { record: self.ledger.get(), machine: &self.machine };
        match action {
            Action::Keep(Upkeep { create, delete, next: _ }) => {
                let now = self.machine.elapsed();
                self.pods.request(&mut self.replicas, &create, &record.spec, now);
                delete.iter().for_each(|id| self.pods.replace(&mut self.replicas, *id, now));
                create.into_iter().chain(delete).for_each(|id| self.note_replica(id));
            }
            Action::Enrol { generation, roster } => {
                let earlier = self.starts_so_far();
                self.replicas.enrol(generation, &roster, (earlier, self.machine.policy().wishes.pushes));
                self.starts.begin(earlier, generation, &roster);
            }
            Action::Configure(generation) => {
                // The record may include a push that the policy does not include yet.
                self.starts.configure(self.machine.policy().wishes.pushes);
                self.balance.keep_speeds();
                let sizes = self.runs.configure(generation, &mut self.replicas, current, &self.balance).await;
                self.balance.begin_with(generation, sizes);
            }
            Action::Launch(generation) => {
                if self.replicas.have_prototypes() {
                    self.ledger.remember(generation).await?;
                }
                self.runs.launch(generation, &self.replicas, &self.machine).await;
            }
            Action::Rejoin { generation, replica } => {
                self.runs.rejoin((generation, replica), &mut self.replicas, current, &self.balance).await;
            }
            Action::StopTraining { grace } => self.stop(grace, |role| role != Role::Evaluator).await,
            Action::StopRuns { grace } => self.stop(grace, |_| true).await,
            // `advance` has stored the diagnosis.
            Action::RecordRestart(_) => self.ledger.record_restart(self.machine.policy()).await?,
            Action::RecordHalt => {
                self.ledger.record_halt(self.machine.phase(), self.starts.times().halted).await?;
            }
            Action::RecordSuspension => self.ledger.record_suspension(self.starts_so_far()).await?,
            Action::Conclude(result) => {
                let Self { machine, ledger, starts, replicas, code, balance, shown, room, .. } = &*self;
                let scene = Scene { ledger, machine, starts, replicas, code, balance, turn: room.turn() };
                let ended = shown.end(result, scene);
                self.ledger.conclude(ended).await?;
            }
            Action::ReleasePods => {
                self.call_start_back().await;
                self.pods.release(&mut self.replicas, self.machine.elapsed(), &mut self.inbox.tasks);
            }
            Action::DeletePods(which) => {
                self.call_start_back().await;
                self.pods.delete(&mut self.replicas, which, &self.machine).await;
            }
        }
        Ok(())
    }

    /// Cancels a start in progress, then asks the agents of these roles to stop their runs.
    async fn stop(&mut self, grace: Duration, includes: fn(Role) -> bool) {
        self.call_start_back().await;
        let current = Current { record: self.ledger.get(), machine: &self.machine };
        self.runs.stop((grace, includes), &mut self.replicas, current, &mut self.inbox.tasks);
    }

    /// Cancels the tasks of a start and waits until they have ended. A requested pod may still appear later.
    async fn call_start_back(&mut self) {
        self.pods.cancel_creations(&mut self.replicas).await;
        self.runs.cancel().await;
    }

    /// The number of starts so far: the greatest number from the record, the agents and this master.
    fn starts_so_far(&self) -> u32 {
        self.starts.so_far(&self.replicas.gang(self.machine.horizon()), self.ledger.get().starts())
    }

    /// Deletes the pods and the folder of a job whose record somebody else has deleted.
    pub(super) async fn abandon(&mut self) {
        warn!(job = %self.ledger.name(), "someone else deleted the record; deleting the pods");
        self.call_start_back().await;
        self.pods.delete_all(&mut self.replicas).await;
        // If a script that is ending still writes files, the next master removes them.
        self.pods.forget().await;
    }

    /// Deletes a job after a user's request, or after its time to live. Deletes the record last: if this master dies
    /// before that, the next master finds the record and continues.
    async fn forget(&mut self) -> Result<(), Stop> {
        self.take_pods();
        self.call_start_back().await;
        if self.replicas.any(|replica| replica.seen.pod.is_some()) {
            self.pods.delete(&mut self.replicas, PodSelection::All, &self.machine).await;
            return Ok(());
        }
        // The output and the record are read until the history has the job. Then the driver comes here again.
        if self.past.is_underway() {
            return Ok(());
        }
        // The watch might not have reported a pod that was created a moment ago.
        self.pods.delete_all(&mut self.replicas).await;
        self.pods.remove_logs().await;
        // On a full disk, there may be room now.
        self.past.try_again().await;
        self.pods.forget().await;
        self.ledger.delete().await;
        Err(Stop::End)
    }
}

/// The next phase and its actions. If the phase stays, stores when to look again. `holds` is whether the job has pods, or
/// pods that may still appear.
fn step(
    gang: &Gang<'_>,
    holds: bool,
    ledger: &Ledger,
    machine: &mut Machine,
    room: &mut Room,
) -> (JobPhase, Vec<Action>) {
    let record = ledger.get();
    // When to ask for the job's turn again.
    let ask_at = room.ask(gang, holds, record, machine);
    let (policy, restarts) = (machine.policy(), &ledger.restarts(machine.policy()));
    let seen = Seen { gang, policy, restarts, turn: room.turn(), epoch: record.epoch, now: machine.elapsed() };
    // A wish to cancel takes precedence over observations, so that the end of a cancelled run does not count as a failure.
    let event = if record.wish >= Wish::Cancel { JobEvent::CancelWished } else { JobEvent::Observed };
    let (phase, actions) = phase::step(machine.phase().clone(), event, seen);
    if phase == *machine.phase() {
        let look_at = phase::next_look(&phase, &actions, seen).into_iter().chain(ask_at).min();
        machine.look_at(look_at);
    }
    (phase, actions)
}

/// Stores the diagnosis of this failure if none is stored yet. Without a failure, drops the stored diagnosis, for example
/// when a halted job receives new code.
async fn diagnose(
    failure: Option<&Failure>,
    gang: &Gang<'_>,
    ledger: &mut Ledger,
    table: &ReplicaTable,
    policy: &Policy,
) {
    match failure {
        Some(failure) if ledger.failed().is_none() => {
            let last_lines = match ledger.to_quote(failure) {
                Some(id) => table.last_lines(id, failure).await,
                None => vec![],
            };
            ledger.diagnose(failure.clone(), gang, policy, last_lines);
        }
        Some(_) => {}
        None => ledger.forget_failure(),
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
        | Action::Rejoin { .. }
        | Action::StopTraining { .. }
        | Action::StopRuns { .. }
        | Action::ReleasePods
        | Action::DeletePods(_) => None,
    })
}
