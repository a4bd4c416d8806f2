//! The table of a job's replicas: what their pods and agents have reported, which seats they have in a start, and what
//! they have printed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use job::gang::Gang;
use job::observation::{AgentState, Enrolled, LostRun, Wait};
use job::phase::{Attempt, JobPhase, StartStage};
use job::replica::ReplicaPhase;
use job::roster::Roster;
use job::tracked::Tracked;
use protocol::agent::{Membership, RunState, RunStatus};
use protocol::code::CodeId;
use protocol::failure::{Failure, LAST_LINES_MAX};
use protocol::ids::{Generation, ReplicaId};
use tokio::time::timeout;

use super::replica::Replica;
use crate::driver::job_code::JobCode;
use crate::driver::machine::Current;
use crate::driver::reports::Subject;
use crate::logs::JobLogs;
use crate::store::JobRecord;

/// Maximum time to copy the last output of a replica before its last lines or numbers are read.
pub(in crate::driver) const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// The replicas of one job.
pub(in crate::driver) struct ReplicaTable {
    replicas: BTreeMap<ReplicaId, Replica>,
    logs: Arc<JobLogs>,
}

impl ReplicaTable {
    pub(in crate::driver) fn new(record: &JobRecord, logs: Arc<JobLogs>) -> Self {
        let mut table = Self { replicas: BTreeMap::new(), logs };
        // A master may have thousands of finished jobs. So if the job has ended, track only the replicas that still
        // have pods: the back end lists these pods.
        if record.ended.is_none() {
            table.add(record.replicas(), record.epoch);
        }
        table
    }

    /// Begins to track these replicas.
    pub(super) fn add(&mut self, replicas: impl IntoIterator<Item = ReplicaId>, epoch: u32) {
        let new: Vec<_> = replicas.into_iter().filter(|id| !self.replicas.contains_key(id)).collect();
        if !new.is_empty() {
            self.logs.add(&new);
        }
        let first = |id| Some((id, Replica::first(epoch, self.logs.of(id)?)));
        self.replicas.extend(new.into_iter().filter_map(first));
    }

    pub(super) fn get(&self, id: ReplicaId) -> Option<&Replica> {
        self.replicas.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ReplicaId) -> Option<&mut Replica> {
        self.replicas.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (ReplicaId, &Replica)> {
        self.replicas.iter().map(|(id, replica)| (*id, replica))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ReplicaId, &mut Replica)> {
        self.replicas.iter_mut().map(|(id, replica)| (*id, replica))
    }

    pub(in crate::driver) fn ids(&self) -> impl ExactSizeIterator<Item = ReplicaId> {
        self.replicas.keys().copied()
    }

    /// What is known of this replica, if the job has it.
    pub(in crate::driver) fn tracked(&self, id: ReplicaId) -> Option<&Tracked> {
        self.get(id).map(|replica| &replica.tracked)
    }

    /// Whether `test` holds for at least one replica.
    pub(in crate::driver) fn any(&self, test: impl Fn(&Tracked) -> bool) -> bool {
        self.replicas.values().any(|replica| test(&replica.tracked))
    }

    /// The gang of the present start. Runs of generations before `horizon` belong to earlier starts.
    pub(in crate::driver) fn gang(&self, horizon: Option<Generation>) -> Gang<'_> {
        let places = self.iter().map(|(id, replica)| replica.tracked.place(id, horizon));
        Gang::new(places.collect(), horizon)
    }

    /// Takes the report of an agent.
    pub(in crate::driver) fn hear(
        &mut self,
        (subject, agent): (Subject, AgentState),
        Current { record, machine }: Current<'_>,
        code: &JobCode,
    ) {
        if is_being_configured_anew(machine.phase(), &agent) {
            return;
        }
        // An agent of the first prototype cannot report its seat or the end of its lease.
        let needs_report = !machine.policy().is_fixed() || machine.policy().rules.lease.is_some();
        let is_unfit = (needs_report || record.spec.processes_of(subject.id) > 1) && agent == AgentState::SeedOnly;
        let agent = if is_unfit { AgentState::Failed(LostRun::of_prototype()) } else { agent };
        let Some(replica) = self.get_mut(subject.id) else { return };
        replica.hear(subject, agent, record);
        if let (Some(agent), Some(status)) = (replica.agent(), replica.tracked.seen.agent.status()) {
            code.note_held(subject.id, Some((agent, status.code)));
        }
    }

    /// Stores why a replica's pod does not exist yet, or why its agent is not ready yet.
    pub(in crate::driver) fn wait(&mut self, Subject { id, pod }: Subject, wait: Wait) {
        if let Some(replica) = self.get_mut(id) {
            replica.tracked.wait(pod, wait);
        }
    }

    /// The replicas whose agents have answered, with the addresses of the agents.
    pub(in crate::driver) fn answering(&self) -> impl Iterator<Item = (ReplicaId, SocketAddr)> {
        self.iter().filter_map(|(id, replica)| Some((id, replica.agent()?)))
    }

    /// The code that an agent of the job waits for and that nobody has.
    pub(in crate::driver) fn wanted_code(&self, code: &JobCode) -> Option<CodeId> {
        code.wanted(self.replicas.values().filter_map(|replica| replica.tracked.seen.waits_for()))
    }

    /// Gives the members of the roster their seats in a start. `start` is the number of earlier starts.
    pub(in crate::driver) fn enrol(&mut self, generation: Generation, roster: &Roster, (start, pushes): (u32, u32)) {
        for (id, seat) in roster.seats() {
            let membership = Membership { seat: seat.index, of: roster.len(), start, pushes };
            if let Some(replica) = self.get_mut(id) {
                replica.tracked.seen.enrolled = Some(Enrolled { generation, membership });
            }
        }
    }

    /// Applies the record's number of workers. Pods that a user asks for do not count as replacements of lost pods.
    pub(in crate::driver) fn resize(&mut self, record: &JobRecord, has_changed: bool) {
        if has_changed {
            self.forget_replacements();
        }
        self.add(record.replicas(), record.epoch);
    }

    fn forget_replacements(&mut self) {
        self.replicas.values_mut().for_each(|replica| replica.tracked.forget_replacements());
    }

    /// Prepares the replicas for the phase that the job enters. `has_ended` is whether the record contains the job's end.
    pub(in crate::driver) fn enter(&mut self, phase: &JobPhase, has_ended: bool) {
        match phase {
            // After a resume, new pods do not count as replacements of lost pods.
            JobPhase::Suspended { .. } => self.forget_replacements(),
            JobPhase::Queued { .. } => self.replicas.values_mut().for_each(|replica| replica.change(Tracked::queue)),
            // Long polls begin only now, because they would slow down the start of a large gang.
            JobPhase::Running { generation, .. } => {
                self.replicas.values().for_each(|replica| replica.watch_run(Some(*generation)));
            }
            JobPhase::Restarting { .. } => self.replicas.values_mut().for_each(Replica::begin_again),
            JobPhase::Finished { .. } if has_ended => self.replicas.values_mut().for_each(Replica::finish),
            JobPhase::Pending { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Stopping { .. }
            | JobPhase::Halted { .. }
            | JobPhase::Releasing { .. }
            | JobPhase::Finished { .. } => {}
        }
    }

    /// Whether the job has pods, or has requested pods that may still appear. A pod for which a quota has no room does
    /// not appear.
    pub(in crate::driver) fn hold_room(&self) -> bool {
        self.any(|tracked| tracked.seen.presence().has_containers() || tracked.may_appear())
    }

    /// Whether the deletion of a pod that may still run was requested.
    pub(in crate::driver) fn are_leaving(&self) -> bool {
        self.any(|tracked| tracked.was_asked_to_go() && tracked.seen.presence().has_containers())
    }

    /// Whether a replica has an agent of the first prototype.
    pub(in crate::driver) fn have_prototypes(&self) -> bool {
        self.replicas.values().any(|replica| replica.is_seed_only)
    }

    /// The last lines that this replica has printed in its newest start. If its exec.py has failed, first waits until the
    /// last output is copied.
    pub(in crate::driver) async fn last_lines(&self, id: ReplicaId, failure: &Failure) -> Vec<String> {
        let Some(replica) = self.get(id) else { return vec![] };
        // The last lines lack any output that arrives after this timeout. That output is still copied.
        if let (Failure::ReplicaExited { .. }, Some(follower)) = (failure, &replica.follower) {
            let _ = timeout(LAST_OUTPUT_TIMEOUT, follower.caught_up()).await;
        }
        replica.log.last_lines(LAST_LINES_MAX, replica.output_from).await
    }

    /// The time since the last copied output of each running replica.
    pub(in crate::driver) async fn silences(&self, horizon: Option<Generation>) -> BTreeMap<ReplicaId, Duration> {
        let now = SystemTime::now();
        let mut silences = BTreeMap::new();
        for (id, replica) in self.iter() {
            if matches!(ReplicaPhase::of(&replica.tracked.seen, horizon), ReplicaPhase::Running(_))
                && let Some(last) = self.logs.last_output(id).await
            {
                silences.insert(id, now.duration_since(last).unwrap_or_default());
            }
        }
        silences
    }
}

/// Whether an agent reports an earlier start while the driver configures the next start. The task that configures the
/// agent stops the earlier run, so only the report of that task counts.
fn is_being_configured_anew(phase: &JobPhase, agent: &AgentState) -> bool {
    let JobPhase::Starting(Attempt { generation, stage: StartStage::Configuring, .. }) = phase else { return false };
    let runs_earlier = |status: &RunStatus| {
        matches!(status.state, RunState::Running | RunState::Stopping) && status.generation < Some(*generation)
    };
    agent.status().is_some_and(runs_earlier)
}
