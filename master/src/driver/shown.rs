//! What users see of a job: its view, built from the parts of its driver.

use std::sync::Arc;
use std::time::Duration;

use job::phase::JobPhase;
use job::turns::Turn;
use protocol::ids::{JobName, ReplicaId};
use protocol::view::{JobResult, JobState, JobTimes, JobView, ReplicaView};
use tokio::time::Instant;

use super::balance::Balance;
use super::job_code::JobCode;
use super::machine::{Machine, SMALL_GANG};
use super::pods::{self, ReplicaTable};
use super::record::Ledger;
use super::starts::Starts;
use super::view_sender::ViewSender;
use crate::store::{Ended, JobRecord};

/// Minimum time between two views of a gang that is not small, while its phase stays the same. Except during a start, the
/// view of a small gang is published after every change.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);

/// The view of a job before its driver has observed it.
pub fn initial(record: &JobRecord) -> JobView {
    recorded(record, pods::initial(record))
}

/// A view with these replicas. All other fields come from the record, or have the values of a job that has not been
/// observed.
fn recorded(record: &JobRecord, replicas: Arc<[ReplicaView]>) -> JobView {
    JobView {
        name: record.spec.name.clone(),
        uid: record.uid.clone(),
        seq: 1,
        state: JobState::Pending,
        generation: None,
        result: None,
        restarts: record.restarts.clone(),
        spec: Arc::clone(&record.spec),
        workers: record.workers(),
        code: record.code(),
        wanted_code: None,
        pushes: record.pushes,
        started_pushes: 0,
        roster: vec![],
        changes: vec![],
        replicas,
        warnings: vec![],
        queued_behind: None,
        batches: None,
        folder: None,
        times: times(record, &JobTimes { accepted: Some(record.accepted_at), ..JobTimes::default() }),
    }
}

/// The times at which the job reached its phases, was suspended and was resumed.
fn times(record: &JobRecord, reached: &JobTimes) -> JobTimes {
    let (suspended, resumed) = (record.suspension.since, record.suspension.resumed);
    JobTimes { suspended, resumed, ..reached.clone() }
}

/// The parts of a driver that the view shows.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) machine: &'a Machine,
    pub(super) starts: &'a Starts,
    pub(super) replicas: &'a ReplicaTable,
    pub(super) code: &'a JobCode,
    pub(super) balance: &'a Balance,
    pub(super) turn: &'a Turn,
}

/// The view of one job, and what only the view shows.
pub(super) struct Shown {
    view: ViewSender,
    published_at: Instant,
    /// When to publish the next view, if something has changed since the last view, or if the view changes with time.
    publish_at: Option<Instant>,
}

impl Shown {
    pub(super) fn new(view: ViewSender) -> Self {
        Self { view, published_at: Instant::now(), publish_at: None }
    }

    /// The view that was published last.
    pub(super) fn view(&self) -> JobView {
        self.view.borrow().clone()
    }

    pub(super) fn publish_at(&self) -> Option<Instant> {
        self.publish_at
    }

    /// The end of the job with this result, for its record.
    pub(super) fn end(&self, result: JobResult, scene: Scene<'_>) -> Ended {
        Ended {
            result,
            times: scene.starts.times().clone(),
            generation: self.view.borrow().generation,
            roster: roster(scene),
            replicas: pods::views(scene.replicas, scene.ledger.get(), scene.machine),
        }
    }

    /// Publishes the view. While the phase of a large gang stays the same, publishes at most one view in each
    /// [`PUBLISH_INTERVAL`]. A large view takes long to build, and thousands of reports may arrive in a second.
    pub(super) fn publish_in_time(&mut self, has_moved: bool, scene: Scene<'_>) {
        self.publish_at = None;
        // During a start, publish only if the phase, its stage or the wanted code has changed. The agents of a large
        // gang send thousands of answers.
        let shows_wanted = || self.view.borrow().wanted_code == scene.replicas.wanted_code(scene.code);
        if !has_moved && matches!(scene.machine.phase(), JobPhase::Starting { .. }) && shows_wanted() {
            return;
        }
        let next = self.published_at + PUBLISH_INTERVAL;
        let is_due = has_moved || scene.replicas.ids().len() <= SMALL_GANG || next <= Instant::now();
        if !is_due {
            self.publish_at = Some(next);
            return;
        }
        self.published_at = Instant::now();
        // The view of a finished job does not change.
        let has_ended = scene.machine.phase().result().is_some();
        let unusual = if has_ended { None } else { pods::until_unusual(scene.replicas) };
        self.publish_at = unusual.map(|left| self.published_at + left);
        let shown = self.shown(scene);
        self.view.send_if_modified(|view| renew(view, shown));
    }

    /// The current view of the job, without its `seq`: see [`renew`].
    fn shown(&self, scene: Scene<'_>) -> JobView {
        let Scene { ledger, machine, starts, replicas, code, balance, turn } = scene;
        let (record, phase) = (ledger.get(), machine.phase());
        let mut view = JobView {
            state: phase.state(),
            generation: phase.generation().or(record.ended.as_ref().and_then(|ended| ended.generation)),
            result: phase.result().cloned(),
            wanted_code: replicas.wanted_code(code).filter(|_| record.ended.is_none()),
            started_pushes: starts.started_pushes(),
            roster: record.ended.as_ref().map_or_else(|| roster(scene), |ended| ended.roster.clone()),
            changes: starts.timeline().changes(machine.policy().rules.kind),
            queued_behind: queued_behind(phase, turn),
            batches: balance.shown(phase.generation()),
            times: times(record, starts.times()),
            ..recorded(record, pods::views(replicas, record, machine))
        };
        // The record's `restarts` does not yet contain the newest failure if it was just diagnosed, or if the job is
        // halted. So the view adds it.
        if let Some(failed) = ledger.failed() {
            view.restarts.note(failed.clone());
        }
        view
    }
}

/// The job whose gang gets room before this job creates pods.
fn queued_behind(phase: &JobPhase, turn: &Turn) -> Option<JobName> {
    if let JobPhase::Queued { behind, .. } = phase {
        return Some(behind.clone());
    }
    let (JobPhase::Pending { .. }, Turn::Hold(first)) = (phase, turn) else { return None };
    first.clone()
}

/// The members of an elastic job's newest start. Empty for a fixed job, because its members never change.
fn roster(scene: Scene<'_>) -> Vec<ReplicaId> {
    if scene.machine.policy().is_fixed() { vec![] } else { scene.starts.roster().to_vec() }
}

/// Replaces a view if the new view differs in more than its `seq`. Returns whether the view was replaced.
/// After a start has ended, the view keeps the generation and the number of pushes of that start. The registry knows the
/// folder, which does not change.
fn renew(view: &mut JobView, mut shown: JobView) -> bool {
    shown.seq = view.seq;
    shown.folder.clone_from(&view.folder);
    shown.generation = shown.generation.or(view.generation);
    shown.started_pushes = shown.started_pushes.max(view.started_pushes);
    if shown == *view {
        return false;
    }
    shown.seq += 1;
    *view = shown;
    true
}
