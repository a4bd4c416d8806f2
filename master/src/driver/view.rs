//! Builds the view of a job from its record and its driver's observations.

use std::sync::Arc;
use std::time::Duration;

use job::observation::{Observation, Wait};
use job::phase::JobPhase;
use job::replica::ReplicaPhase;
use protocol::agent::ExitReport;
use protocol::code::CodeId;
use protocol::ids::{Generation, PodName, ReplicaId};
use protocol::view::{JobState, JobTimes, JobView, ReplicaView};
use tokio::time::Instant;

use super::Driver;
use super::tracked::Replica;
use crate::store::JobRecord;

/// Maximum number of replicas in a small gang. Except during a start, the view of a small gang is published after every
/// change.
const SMALL_GANG: usize = 64;
/// Minimum time between two views of a larger gang while its phase stays the same.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);

/// The view of a job before its driver has observed it.
pub fn initial(record: &JobRecord) -> JobView {
    let replicas = record.replicas();
    let replica = |id: ReplicaId| of_replica(record, id, &Observation::NEW, None);
    JobView {
        name: record.spec.name.clone(),
        uid: record.uid.clone(),
        seq: 1,
        state: JobState::Pending,
        generation: None,
        result: None,
        restarts: record.restarts.clone(),
        spec: record.spec.clone(),
        workers: record.workers(),
        code: record.code(),
        wanted_code: None,
        pushes: record.pushes,
        started_pushes: 0,
        roster: vec![],
        changes: vec![],
        replicas: replicas.into_iter().map(replica).collect(),
        warnings: vec![],
        queued_behind: None,
        times: times(record, &JobTimes { accepted: Some(record.accepted_at), ..JobTimes::default() }),
    }
}

/// The times at which the job reached its phases, was suspended and was resumed.
fn times(record: &JobRecord, reached: &JobTimes) -> JobTimes {
    let (suspended, resumed) = (record.suspension.since, record.suspension.resumed);
    JobTimes { suspended, resumed, ..reached.clone() }
}

impl Driver {
    /// The views of the replicas. If the job has ended, these are the views in its record.
    pub(super) fn replica_views(&self) -> Arc<[ReplicaView]> {
        match &self.stored.record.ended {
            Some(ended) => Arc::clone(&ended.replicas),
            None => {
                let horizon = self.phase.horizon();
                let view = |(id, replica): (&ReplicaId, &Replica)| {
                    // The pods of a gang that waits for its turn are being deleted. This is no failure.
                    let is_queued = matches!(self.phase, JobPhase::Queued { .. });
                    let seen = if is_queued { &Observation::NEW } else { &replica.seen };
                    let mut view = of_replica(&self.stored.record, *id, seen, horizon);
                    if matches!(self.phase, JobPhase::Pending { .. }) {
                        view.reason = self.why_others_wait(&view, &replica.seen).or(view.reason);
                    }
                    view
                };
                let unwanted = self.unwanted();
                self.replicas.iter().filter(|(id, _)| !unwanted.contains(*id)).map(view).collect()
            }
        }
    }

    /// Why the next start of an elastic job waits for this replica: exec.py may still run there.
    fn why_others_wait(&self, view: &ReplicaView, seen: &Observation) -> Option<String> {
        let known = view.reason.as_ref().map(|reason| format!("{reason}; ")).unwrap_or_default();
        let spec = &self.stored.record.spec;
        // The advice is for Kubernetes, where pods have an image. With a lease, the start does not wait long.
        let advice = spec.image.as_ref().filter(|_| spec.run_policy.lease().is_none());
        let advice =
            advice.map_or(String::new(), |_| format!("; if the node is dead: kubectl delete pod {} --force", view.pod));
        seen.may_run().then(|| format!("{known}the next start waits, because exec.py may still run here{advice}"))
    }

    /// The members of the newest start of an elastic job. A fixed job always has the same members.
    pub(super) fn shown_roster(&self) -> Vec<ReplicaId> {
        if self.policy.is_fixed() { vec![] } else { self.starts.roster().to_vec() }
    }

    /// The code that an agent of the job waits for and that nobody has.
    fn wanted_code(&self) -> Option<CodeId> {
        self.code.wanted(self.replicas.values().filter_map(|replica| replica.seen.waits_for()))
    }

    /// Publishes the view. While the phase of a large gang stays the same, publishes at most one view in each
    /// [`PUBLISH_INTERVAL`]: a large view takes long to build, and thousands of reports may arrive in a second.
    pub(super) fn publish_in_time(&mut self, has_moved: bool) {
        // During a start, publish only when the stage changes: the agents of a large gang send thousands of answers.
        let shows_wanted = || self.channels.view.borrow().wanted_code == self.wanted_code();
        if !has_moved && matches!(self.phase, JobPhase::Starting { .. }) && shows_wanted() {
            return;
        }
        let next = self.published_at + PUBLISH_INTERVAL;
        let is_due = has_moved || self.replicas.len() <= SMALL_GANG || next <= Instant::now();
        self.publish_at = (!is_due).then_some(next);
        if is_due {
            self.published_at = Instant::now();
            self.publish();
        }
    }

    fn publish(&self) {
        let shown = self.shown();
        self.channels.view.send_if_modified(|view| renew(view, shown));
    }

    /// The current view of the job, without its `seq`: see [`renew`].
    fn shown(&self) -> JobView {
        let (record, phase) = (&self.stored.record, &self.phase);
        let mut restarts = record.restarts.clone();
        // A failure that was just diagnosed is not yet in `restarts`. The record of a halted job has it in `halted`.
        self.failed.iter().for_each(|failed| restarts.note(failed.clone()));
        JobView {
            name: record.spec.name.clone(),
            uid: record.uid.clone(),
            seq: 0,
            state: phase.state(),
            generation: phase.generation().or(record.ended.as_ref().and_then(|ended| ended.generation)),
            result: phase.result().cloned(),
            restarts,
            spec: record.spec.clone(),
            workers: record.workers(),
            code: record.code(),
            wanted_code: self.wanted_code().filter(|_| record.ended.is_none()),
            pushes: record.pushes,
            started_pushes: self.starts.started_pushes(),
            roster: record.ended.as_ref().map_or_else(|| self.shown_roster(), |ended| ended.roster.clone()),
            changes: self.starts.changes().to_vec(),
            replicas: self.replica_views(),
            warnings: vec![],
            queued_behind: if let JobPhase::Queued { behind, .. } = phase { Some(behind.clone()) } else { None },
            times: times(record, &self.times),
        }
    }
}

/// Replaces a view if the new view differs in more than its `seq`. Returns whether the view was replaced.
/// After a start has ended, the view keeps the generation and the number of pushes of that start.
fn renew(view: &mut JobView, mut shown: JobView) -> bool {
    shown.seq = view.seq;
    shown.generation = shown.generation.or(view.generation);
    shown.started_pushes = shown.started_pushes.max(view.started_pushes);
    if shown == *view {
        return false;
    }
    shown.seq += 1;
    *view = shown;
    true
}

/// The view of one replica. Runs of generations before `horizon` belong to earlier starts.
fn of_replica(record: &JobRecord, id: ReplicaId, seen: &Observation, horizon: Option<Generation>) -> ReplicaView {
    let phase = &ReplicaPhase::of(seen, horizon);
    let status = seen.agent.status();
    ReplicaView {
        replica: id,
        state: phase.state(),
        pod: PodName::new(&record.spec.name, id).to_string(),
        address: seen.addresses().map(|addresses| addresses.tensorflow.to_string()),
        reason: reason(seen, phase),
        pid: status.and_then(|status| status.pid),
        started_at: status.and_then(|status| status.started_at),
        exit: phase.exit().map(ExitReport::without_output),
    }
}

fn reason(seen: &Observation, phase: &ReplicaPhase) -> Option<String> {
    match phase {
        ReplicaPhase::Lost(lost) => Some(lost.reason.clone()),
        ReplicaPhase::Requested
        | ReplicaPhase::Scheduled
        | ReplicaPhase::Joined
        | ReplicaPhase::Configured(_)
        | ReplicaPhase::Running(_)
        | ReplicaPhase::Exited(..) => seen.waits_for().map(Wait::to_string),
    }
}
