//! The record of a driver's job, and what the driver writes to it: launches, failures, halts, suspensions, and the job's
//! end. Also keeps the evidence of a failed start until the failure is on record.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use job::diagnosis::{Evidence, diagnose, longest_silent};
use job::gang::Gang;
use job::phase::{Halt, JobPhase};
use job::policy::{FORGIVE_AFTER, Policy};
use protocol::failure::{FailedStart, Failure, Restarts};
use protocol::ids::{Generation, JobName, ReplicaId, UnixMillis};
use tracing::{debug, info};

use super::view_sender::ViewSender;
use super::writing::{Written, amend_or_mend, persistently};
use super::{Context, Stop};
use crate::store::{Ended, Halted, JobRecord, Stored};

/// The record of one job, as this driver knows it.
pub(super) struct Ledger {
    context: Arc<Context>,
    view: ViewSender,
    stored: Stored,
    /// The newest start, also after its end; `None` while a gang gathers for the next start.
    current_start: Option<Generation>,
    /// The diagnosis of a failed start, until the failure is recorded or a halted job gets new code.
    failed: Option<FailedStart>,
    /// The time since each replica's last output, measured at the job's deadline. Kept until the failure is diagnosed.
    silence: BTreeMap<ReplicaId, Duration>,
    /// Where the scripts were at the job's deadline. Kept until the failure is diagnosed.
    stacks: Option<String>,
}

impl Ledger {
    /// `current_start` is the start that the driver continues, if any.
    pub(super) fn new(
        context: Arc<Context>,
        view: ViewSender,
        stored: Stored,
        current_start: Option<Generation>,
    ) -> Self {
        let failed = stored.record.waits_after().map(|halted| halted.failed.clone());
        Self { context, view, stored, current_start, failed, silence: BTreeMap::new(), stacks: None }
    }

    pub(super) fn get(&self) -> &JobRecord {
        &self.stored.record
    }

    pub(super) fn name(&self) -> &JobName {
        self.stored.name()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The present time, by the store's clock.
    pub(super) fn now(&self) -> UnixMillis {
        self.context.store.now()
    }

    /// The job's age without suspensions.
    pub(super) fn active_time(&self) -> Duration {
        self.get().active_time(self.now())
    }

    /// The diagnosis of a failed start, if it is not on record yet.
    pub(super) fn failed(&self) -> Option<&FailedStart> {
        self.failed.as_ref()
    }

    /// The job's restarts. After [`FORGIVE_AFTER`] without a counted failure, an elastic job's failures are forgiven.
    pub(super) fn restarts(&self, policy: &Policy) -> Cow<'_, Restarts> {
        let restarts = &self.get().restarts;
        let is_forgiven = |at: UnixMillis| self.now().since(at) >= FORGIVE_AFTER;
        if !policy.is_fixed() && restarts.last_counted_at.is_some_and(is_forgiven) {
            // `step` reads only the numbers.
            let Restarts { counted, uncounted, .. } = *restarts;
            return Cow::Owned(Restarts { counted, uncounted, forgiven: counted, ..Restarts::default() });
        }
        Cow::Borrowed(restarts)
    }

    /// Takes the newest record that the watch has reported. Returns whether the record is new.
    pub(super) fn take(&mut self, newest: Stored) -> Result<bool, Stop> {
        let (known, epoch) = (&self.stored.record, newest.record.epoch);
        if epoch > known.epoch {
            info!(job = %newest.name(), epoch, "another master has taken the job over");
            return Err(Stop::Yield);
        }
        // The watch may report a change late, even a change from before a takeover.
        let is_new = (epoch, newest.record.revision) >= (known.epoch, known.revision);
        if is_new {
            self.stored = newest;
        }
        Ok(is_new)
    }

    /// Notes the phase that the job enters.
    pub(super) fn enter(&mut self, phase: &JobPhase) {
        let generation = phase.generation();
        if generation.is_some() || matches!(phase, JobPhase::Restarting { .. }) {
            self.current_start = generation;
        }
    }

    /// Notes how long the scripts have been silent, and where they are, when the job exceeds its deadline.
    pub(super) fn note_deadline(&mut self, silence: BTreeMap<ReplicaId, Duration>, stacks: Option<String>) {
        (self.silence, self.stacks) = (silence, stacks);
    }

    /// The replica whose last output explains this failure.
    pub(super) fn to_quote(&self, failure: &Failure) -> Option<ReplicaId> {
        failure.replica().or_else(|| longest_silent(&self.silence))
    }

    /// Stores the diagnosis of a failed start.
    pub(super) fn diagnose(&mut self, failure: Failure, gang: &Gang<'_>, policy: &Policy, last_lines: Vec<String>) {
        let (silence, stacks) = (mem::take(&mut self.silence), self.stacks.take());
        let budget = policy.budget_of(&failure, gang.helper_of(&failure));
        let (generation, now) = (self.current_start, self.now());
        let evidence = Evidence { generation, now, budget, last_lines, silence, stacks };
        self.failed = Some(diagnose(failure, gang, evidence));
    }

    /// Drops the diagnosis of a failed start, for example when a halted job receives new code.
    pub(super) fn forget_failure(&mut self) {
        self.failed = None;
    }

    /// Changes the record if this master still holds the job. Otherwise leaves the record unchanged.
    async fn write(&mut self, change: impl Fn(&mut JobRecord)) -> Result<(), Stop> {
        let (uid, epoch) = (self.get().uid.clone(), self.get().epoch);
        let is_held = |record: &JobRecord| record.uid == uid && record.epoch == epoch;
        let while_held = |record: &mut JobRecord| {
            if is_held(record) {
                change(record);
            }
        };
        let (store, known) = (self.context.store.as_ref(), &self.stored);
        match persistently(&self.view, || amend_or_mend(store, known, while_held)).await {
            Written::Stored(stored) if is_held(&stored.record) => self.stored = stored,
            Written::Stored(stored) if stored.record.uid == uid => return Err(Stop::Yield),
            Written::OtherFormat => return Err(Stop::Yield),
            // The record no longer exists, or another job has its name.
            Written::Stored(_) | Written::Gone => return Err(Stop::Gone),
        }
        Ok(())
    }

    /// Rewrites the record after somebody has damaged it.
    pub(super) async fn mend(&mut self) -> Result<(), Stop> {
        self.write(|_| {}).await
    }

    /// Records that a start is about to begin. Only gangs with agents of the first prototype need this: a later master
    /// cannot ask these agents about the start.
    pub(super) async fn remember(&mut self, generation: Generation) -> Result<(), Stop> {
        self.write(|record| record.launched = Some(generation)).await
    }

    /// Records the failure before the evidence is deleted, so that later drivers count the failure exactly once.
    pub(super) async fn record_restart(&mut self, policy: &Policy) -> Result<(), Stop> {
        let Some(failed) = self.failed.take() else { return Ok(()) };
        let (restarts, failure) = (self.get().restarts.total() + 1, &failed.failure);
        info!(job = %self.name(), %failure, counted = failed.counted, restarts, "restarting the gang");
        let (forgiven, now) = (self.restarts(policy).forgiven, self.now());
        self.write(|record| {
            // An earlier attempt may have succeeded although its answer was lost.
            let is_noted = |last: &FailedStart| (last.generation, last.at) == (failed.generation, failed.at);
            if record.restarts.failed_starts.last().is_some_and(is_noted) {
                return;
            }
            record.halted = None;
            record.restarts.forgiven = forgiven;
            record.restarts.note(failed.clone());
            record.restarts.count_restart(now);
        })
        .await?;
        self.context.tally.restarted.inc();
        Ok(())
    }

    /// Records the failure after which the job waits for new code, and when the wait began. A later master may be
    /// unable to observe this failure.
    pub(super) async fn record_halt(&mut self, phase: &JobPhase, since: Option<UnixMillis>) -> Result<(), Stop> {
        let (JobPhase::Halted(Halt { pushes, .. }), Some(failed), Some(since)) = (phase, &self.failed, since) else {
            return Ok(());
        };
        let halted = Halted { since, pushes: *pushes, failed: failed.clone() };
        self.write(|record| record.halted = Some(halted.clone())).await
    }

    /// Records which start the suspension has ended, and the number of starts so far. After the pods are deleted, no
    /// agent can report these values to a later master.
    pub(super) async fn record_suspension(&mut self, starts: u32) -> Result<(), Stop> {
        let JobRecord { restarts, suspension, .. } = self.get();
        let known = restarts.newest_failed().max(suspension.ended);
        let Some(ended) = self.current_start.filter(|start| Some(*start) > known) else { return Ok(()) };
        self.write(|record| {
            record.halted = None;
            record.suspension.ended = Some(ended);
            record.suspension.starts = starts.saturating_sub(record.restarts.total());
        })
        .await
    }

    /// Records the result before the pods and their evidence are deleted. The driver does nothing else meanwhile.
    pub(super) async fn conclude(&mut self, ended: Ended) -> Result<(), Stop> {
        let (failed, ended) = (self.failed.take(), ended.bounded());
        info!(job = %self.name(), result = %ended.result.state(), "job ended");
        self.write(|record| {
            if record.ended.is_none() {
                record.ended = Some(ended.clone());
                failed.clone().into_iter().for_each(|failed| record.restarts.note(failed));
            }
        })
        .await?;
        self.context.tally.end(&ended.result);
        Ok(())
    }

    /// Deletes the record.
    pub(super) async fn delete(&mut self) {
        let (store, name, uid) = (self.context.store.as_ref(), self.name(), &self.get().uid);
        persistently(&self.view, || store.delete(name, uid)).await;
        self.context.tally.deleted.inc();
        debug!(job = %name, "job deleted");
    }
}
