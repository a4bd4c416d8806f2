//! The timeline of a job: notes when its starts reach each step. The driver updates the timeline when it moves the
//! phase. Nothing is written to the record, so after a takeover, the timeline has only what the record and the agents
//! report.

mod replicas;

use std::sync::MutexGuard;

use job::gang::{Gang, was_stopped};
use job::phase::{Ending, JobPhase};
use job::policy::GangKind;
use job::tracked::Tracked;
use protocol::failure::Failure;
use protocol::ids::{Generation, ReplicaId, Role, UnixMillis};
use protocol::progress::LostSteps;
use protocol::spent::Spent;
use protocol::starts::{CHANGES_MAX, ChangeCause, GangChange};
use protocol::timeline::{Folded, ReplicaFacts, STARTS_MAX, StartEnding, StartFacts, StepAt, Timeline};
use protocol::view::{JobResult, JobView};

use self::replicas::Replicas;
use crate::mutex::Mutex;
use crate::store::JobRecord;
use crate::tally::StartTimes;

/// The timeline of one job. The job's driver writes the timeline, and requests read it. The timeline outlives a driver
/// that panics.
#[derive(Debug, Default)]
pub struct TimelineOfJob(Mutex<Facts>);

/// What is known of the starts of a job and of its replicas.
#[derive(Debug, Default)]
pub(super) struct Facts {
    taken_over: Option<UnixMillis>,
    /// The number of starts of earlier masters.
    unseen: u32,
    folded: Option<Folded>,
    /// The starts, oldest first. The last one has no generation while the gang gathers.
    starts: Vec<StartFacts>,
    replicas: Replicas,
    /// The newest start that failed, and its replicas.
    failed: Option<(Option<Generation>, Vec<ReplicaFacts>)>,
}

/// What is known of a start when it begins.
pub(super) struct Beginning {
    pub(super) workers: u32,
    pub(super) cause: ChangeCause,
    /// The steps of the previous start that are lost, if it is known that there are any.
    pub(super) lost_steps: Option<LostSteps>,
}

impl TimelineOfJob {
    /// Notes that a driver begins in this phase.
    pub(super) fn begin(&self, record: &JobRecord, phase: &JobPhase, now: UnixMillis) {
        let mut facts = self.0.lock();
        let is_known = !facts.starts.is_empty() || facts.taken_over.is_some();
        if !is_known && (record.epoch > 1 || record.ended.is_some()) {
            let last = record.ended.as_ref().is_some_and(|ended| ended.generation.is_some());
            (facts.taken_over, facts.unseen) = (Some(now), record.starts() + u32::from(last));
        }
        if let (JobPhase::Halted(halt), true) = (phase, facts.starts.is_empty()) {
            let ending = Some(StartEnding::Failed { failure: without_output(halt.failure.clone()) });
            let (generation, ended) = (Some(halt.generation), Some(now));
            facts.starts.push(StartFacts { generation, stopped: ended, dead: ended, ending, ..StartFacts::default() });
            facts.unseen = facts.unseen.saturating_sub(1);
        }
        let began = if record.epoch == 1 { record.accepted_at } else { now };
        if matches!(phase, JobPhase::Pending { .. }) && facts.open().is_none() {
            facts.gather(began, None);
        }
    }

    /// The facts, which the driver changes when the job enters a phase.
    pub(super) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock()
    }

    /// Notes that the complete gang begins this start. `earlier` is the number of earlier starts.
    pub(super) fn start(&self, generation: Generation, beginning: Beginning, earlier: u32) {
        let mut facts = self.0.lock();
        let Beginning { workers, cause, lost_steps } = beginning;
        facts.count_unseen(earlier);
        if let Some(start) = facts.open() {
            (start.generation, start.workers, start.lost_steps) = (Some(generation), workers, lost_steps);
            start.cause = Some(cause_without_output(cause));
        }
    }

    /// Notes what is observed of a replica now. Runs before `horizon` belong to earlier starts.
    pub(super) fn see(&self, id: ReplicaId, tracked: &Tracked, horizon: Option<Generation>, now: UnixMillis) {
        self.0.lock().replicas.see(id, tracked, horizon, now);
    }

    /// Notes a step that a script has reported.
    pub(super) fn step(&self, generation: Generation, step: u64, at: UnixMillis) {
        let mut facts = self.0.lock();
        let start = facts.starts.iter_mut().rev().find(|start| start.generation == Some(generation));
        let Some(start) = start else { return };
        start.first_step.get_or_insert(StepAt { step, at });
        if start.last_step.is_none_or(|last| last.step < step) {
            start.last_step = Some(StepAt { step, at });
        }
    }

    /// The newest starts with their causes, oldest first. For a fixed job, only starts that a user has caused, and the
    /// first start after a takeover. The record contains the causes of all other starts.
    pub(super) fn changes(&self, kind: GangKind) -> Vec<GangChange> {
        let facts = self.0.lock();
        let is_told = |start: &&StartFacts| kind != GangKind::Fixed || !start.cause.as_ref().is_some_and(is_on_record);
        let told = facts.starts.iter().rev().filter(is_told).filter_map(StartFacts::change);
        let mut changes: Vec<GangChange> = told.take(CHANGES_MAX).collect();
        changes.reverse();
        changes
    }

    /// The timeline as users see it.
    pub fn shown(&self, view: &JobView, now: UnixMillis) -> Timeline {
        let facts = self.0.lock();
        let accepted = view.times.accepted.unwrap_or(now);
        let ended = if view.result.is_some() { view.times.ended } else { None };
        let begin = facts.taken_over.unwrap_or(accepted);
        let newest = facts.starts.iter().rev().find_map(|start| start.generation);
        let failed = facts.failed.as_ref().filter(|(start, _)| *start != newest);
        Timeline {
            name: view.name.clone(),
            uid: view.uid.clone(),
            state: view.state,
            now,
            accepted,
            taken_over: facts.taken_over,
            ended,
            unseen: facts.unseen,
            folded: facts.folded.clone(),
            starts: facts.starts.clone(),
            replicas: facts.replicas.of(facts.starts.last().and_then(|start| start.generation)),
            failed_replicas: failed.map(|(_, replicas)| replicas.clone()).unwrap_or_default(),
            spent: Spent::of(facts.folded.as_ref(), &facts.starts, (begin, ended.unwrap_or(now))),
        }
    }
}

impl Facts {
    /// The newest start, unless all its runs have ended.
    fn open(&mut self) -> Option<&mut StartFacts> {
        self.starts.last_mut().filter(|start| start.dead.is_none())
    }

    /// How long the newest start took. `None` if this master has not seen all of it.
    pub(super) fn start_times(&self) -> Option<StartTimes> {
        let StartFacts { began, complete, started, .. } = self.starts.last()?;
        let complete = (*complete)?;
        Some(StartTimes { gathering: complete.since((*began)?), starting: (*started)?.since(complete) })
    }

    /// Notes that each agent has its environment.
    pub(super) fn note_configured(&mut self, now: UnixMillis) {
        self.open().into_iter().for_each(|start| start.configured = Some(now));
    }

    /// Notes when the last exec.py was started, unless an earlier time is known.
    pub(super) fn note_started(&mut self, at: Option<UnixMillis>) {
        self.open().into_iter().for_each(|start| start.started = start.started.or(at));
    }

    /// Notes that the runs of the newest start are asked to end.
    pub(super) fn stop(&mut self, ending: StartEnding, now: UnixMillis) {
        let Some(start) = self.open() else { return };
        (start.stopped, start.ending) = (start.stopped.or(Some(now)), Some(ending));
    }

    /// Notes that the gang gathers for a new start.
    pub(super) fn gather(&mut self, began: UnixMillis, cause: Option<ChangeCause>) {
        let cause = cause.map(cause_without_output);
        self.starts.push(StartFacts { began: Some(began), cause, ..StartFacts::default() });
        if self.starts.len() > STARTS_MAX {
            self.fold();
        }
    }

    /// Notes that the gang of this start is complete.
    pub(super) fn complete(&mut self, generation: Generation, now: UnixMillis) {
        // A driver that panicked has left its start open.
        if self.open().is_some_and(|start| start.generation.is_some_and(|known| known != generation)) {
            self.end(StartEnding::Regrouped, now);
            self.gather(now, None);
        }
        self.open().into_iter().for_each(|start| start.complete = Some(now));
    }

    /// Notes that all runs of the newest start have ended.
    pub(super) fn end(&mut self, ending: StartEnding, now: UnixMillis) {
        let Some(start) = self.open() else { return };
        (start.stopped, start.dead) = (start.stopped.or(Some(now)), Some(now));
        let (has_failed, generation) = (matches!(ending, StartEnding::Failed { .. }), start.generation);
        start.ending = Some(ending);
        if has_failed {
            self.failed = Some((generation, self.replicas.of(generation)));
        }
    }

    /// Notes that the gang continues a start of an earlier master, or that this master stops such a start.
    pub(super) fn adopt(&mut self, generation: Generation, gang: &Gang<'_>, starts: u32) {
        self.count_unseen(starts.saturating_sub(1));
        let workers = gang.members().filter(|member| member.id.role == Role::Worker).count();
        let Some(start) = self.open().filter(|start| start.generation != Some(generation)) else { return };
        *start = StartFacts {
            generation: Some(generation),
            workers: u32::try_from(workers).unwrap_or(u32::MAX),
            ..StartFacts::default()
        };
    }

    /// `earlier` is the number of starts before the newest one.
    fn count_unseen(&mut self, earlier: u32) {
        if self.taken_over.is_some() {
            let before = u32::try_from(self.starts.len().saturating_sub(1)).unwrap_or(u32::MAX);
            let seen = before + self.folded.as_ref().map_or(0, Folded::starts);
            self.unseen = self.unseen.max(earlier.saturating_sub(seen));
        }
    }

    /// Removes the oldest start from the list. Of this start, only the cause and the time are kept.
    fn fold(&mut self) {
        let [oldest, next, ..] = &self.starts[..] else { return };
        let until = next.began.or(oldest.dead).unwrap_or(UnixMillis(0));
        let begin = self.taken_over.or(oldest.began).unwrap_or(until);
        let spent = Spent::of(self.folded.as_ref(), &self.starts, (begin, until));
        let mut causes = self.folded.take().map(|folded| folded.causes).unwrap_or_default();
        *causes.entry(oldest.cause.as_ref().map_or("unknown", ChangeCause::name).to_owned()).or_default() += 1;
        self.folded = Some(Folded { causes, until, spent });
        self.starts.remove(0);
    }
}

/// Whether the record of a fixed job contains this cause.
fn is_on_record(cause: &ChangeCause) -> bool {
    match cause {
        ChangeCause::First | ChangeCause::Joined { .. } | ChangeCause::Shrunk => true,
        // A start that was only stopped is not on record as failed.
        ChangeCause::Left { failure } => !was_stopped(failure),
        ChangeCause::Pushed | ChangeCause::Resumed | ChangeCause::TakenOver => false,
    }
}

/// How the last start of a job with this result ends.
pub(super) fn ending_with(result: &JobResult) -> StartEnding {
    match result {
        JobResult::Succeeded => StartEnding::Succeeded,
        JobResult::Failed { failure } => StartEnding::Failed { failure: without_output(failure.clone()) },
        JobResult::Cancelled => StartEnding::Cancelled,
    }
}

fn cause_without_output(cause: ChangeCause) -> ChangeCause {
    if let ChangeCause::Left { failure } = cause {
        return ChangeCause::Left { failure: without_output(failure) };
    }
    cause
}

fn without_output(mut failure: Failure) -> Failure {
    failure.forget_output();
    failure
}

/// How a start ends. The diagnosed failure, if there is one, is the failure that the record gets.
pub(super) fn ending_of(ending: &Ending, diagnosed: Option<&Failure>, gang: &Gang<'_>) -> StartEnding {
    match ending {
        Ending::Succeeded => StartEnding::Succeeded,
        Ending::Failed(known) => {
            let failure = diagnosed.cloned().unwrap_or_else(|| gang.cause(known.clone()));
            StartEnding::Failed { failure: without_output(failure) }
        }
        Ending::Cancelled => StartEnding::Cancelled,
        Ending::Regroup => StartEnding::Regrouped,
        Ending::Suspended => StartEnding::Suspended,
    }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
