//! The replicas of a job: what their pods and agents have reported, and the seats that they have in a start.

mod awaited;
mod create;
mod delete;
mod prototype;
mod replica;
mod stacks;
mod start;
mod views;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use job::gang::Gang;
use job::observation::{AgentState, Enrolled, LostRun, Pod, Presence, Wait};
use job::phase::{Attempt, JobPhase, StartStage};
use job::policy::Policy;
use job::replica::ReplicaPhase;
use job::roster::Roster;
use job::tracked::Tracked;
use job::upkeep::Upkeep;
use job::warm;
use protocol::agent::{Membership, RunState, RunStatus};
use protocol::code::CodeId;
use protocol::failure::{Failure, LAST_LINES_MAX};
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::job::JobSpec;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

pub(super) use self::awaited::is_awaited;
use self::replica::Replica;
pub(super) use self::views::initial;
use super::balance::Balance;
use super::context::{Common, Kept};
use super::follower::{self, Followed, Follower};
use super::job_code::JobCode;
use super::machine::{Current, Machine};
use super::reports::Subject;
use super::timeline::TimelineOfJob;
use crate::agents::token::AgentToken;
use crate::backend::PodTable;
use crate::error_chain::error_chain;
use crate::logs::JobLogs;
use crate::logs::series::SeriesOfJob;
use crate::store::JobRecord;

/// Maximum time to copy the last output of a replica before its last lines or numbers are read.
pub(super) const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval for renewing the network policy of a job's pods, in case somebody has deleted it.
const PREPARE_INTERVAL: Duration = Duration::from_secs(300);

/// The replicas of one job, and the work in progress on their pods.
pub(super) struct Pods {
    common: Common,
    token: AgentToken,
    logs: Arc<JobLogs>,
    series: Arc<SeriesOfJob>,
    timeline: Arc<TimelineOfJob>,
    replicas: BTreeMap<ReplicaId, Replica>,
    table: watch::Receiver<PodTable>,
    /// The current task of the start: configuring agents, or launching runs.
    start: Option<AbortOnDropHandle<()>>,
    creations: Vec<AbortOnDropHandle<()>>,
    /// When to renew the network policy of the job's pods.
    prepare_at: Instant,
}

impl Pods {
    pub(super) fn new(
        common: Common,
        token: AgentToken,
        Kept { logs, series, timeline }: Kept,
        record: &JobRecord,
    ) -> Self {
        let table = common.context.backend.watch(&common.job);
        // A master may have thousands of finished jobs. So if the job has ended, track only the replicas that still
        // have pods: the back end lists these pods.
        let tracked = if record.ended.is_some() { vec![] } else { record.replicas() };
        let replicas = tracked.into_iter().map(|id| (id, Replica::first(record.epoch))).collect();
        let prepare_at = Instant::now() + PREPARE_INTERVAL;
        Self { common, token, logs, series, timeline, replicas, table, start: None, creations: vec![], prepare_at }
    }

    /// Waits until the back end lists other pods. Fails when this master shuts down.
    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.table.changed().await
    }

    pub(super) fn have_changed(&self) -> bool {
        self.table.has_changed().unwrap_or(false)
    }

    /// The number of replicas.
    pub(super) fn count(&self) -> usize {
        self.replicas.len()
    }

    /// All replicas.
    pub(super) fn ids(&self) -> impl Iterator<Item = ReplicaId> {
        self.replicas.keys().copied()
    }

    /// This replica, if the job has it.
    pub(super) fn tracked(&self, id: ReplicaId) -> Option<&Tracked> {
        self.replicas.get(&id).map(|replica| &replica.tracked)
    }

    pub(super) fn has_any(&self) -> bool {
        self.replicas.values().any(|replica| replica.tracked.seen.pod.is_some())
    }

    /// The gang of the present start. Runs of generations before `horizon` belong to earlier starts.
    pub(super) fn gang(&self, horizon: Option<Generation>) -> Gang<'_> {
        let places = self.replicas.iter().map(|(id, replica)| replica.tracked.place(*id, horizon));
        Gang::new(places.collect(), horizon)
    }

    /// Takes the pods that the back end lists now. `has_run` is whether a start of the job has begun.
    pub(super) fn take(&mut self, has_run: bool, Current { record, machine }: Current<'_>, code: &JobCode) {
        let table = self.table.borrow_and_update().clone();
        // Track also the pods of a job that now needs fewer workers, or has ended.
        self.add(table.keys().copied(), record.epoch);
        for (id, replica) in &mut self.replicas {
            let pod = table.get(id).cloned().map(|Pod { incarnation, state }| {
                let state = if has_run { state.after_a_start() } else { state };
                Pod { incarnation, state }
            });
            replica.see(pod, machine.phase());
            prototype::count_as_launched(&mut replica.tracked.seen, record, *id);
            if replica.tracked.seen.presence() != Presence::Live {
                replica.follower.iter().for_each(Follower::pod_has_ended);
                code.note_held(*id, None);
            }
        }
        if !machine.is_finished() {
            self.follow(&record.spec, machine.policy(), code);
        }
    }

    /// Begins to track these replicas.
    fn add(&mut self, replicas: impl Iterator<Item = ReplicaId>, epoch: u32) {
        let new: Vec<ReplicaId> = replicas.filter(|id| !self.replicas.contains_key(id)).collect();
        if !new.is_empty() {
            self.logs.add(&new);
        }
        self.replicas.extend(new.into_iter().map(|id| (id, Replica::first(epoch))));
    }

    /// Begins to follow the pods that have an address and are not followed yet.
    fn follow(&mut self, spec: &JobSpec, policy: &Policy, code: &JobCode) {
        let balance_every = Balance::interval(spec);
        for (id, replica) in &mut self.replicas {
            if let (Some(address), Some(log)) = (replica.to_follow(), self.logs.of(*id)) {
                replica.follower = Some(Follower::begin(Followed {
                    common: self.common.clone(),
                    subject: replica.subject(*id),
                    address,
                    log,
                    series: Arc::clone(&self.series),
                    timeline: Arc::clone(&self.timeline),
                    warm: warm::request(spec, id.role, address.ip()),
                    delivery: code.delivery(),
                    lease: policy.rules.lease,
                    is_found: replica.tracked.seen.is_found,
                    balance_every,
                }));
            }
        }
    }

    /// Takes the report of an agent.
    pub(super) fn hear(
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
        let is_unfit = needs_report && agent == AgentState::SeedOnly;
        let agent = if is_unfit { AgentState::Failed(LostRun::of_prototype()) } else { agent };
        let Some(replica) = self.replicas.get_mut(&subject.id) else { return };
        replica.hear(subject, agent, record);
        if let Some(held) = replica.held_code() {
            code.note_held(subject.id, Some(held));
        }
    }

    /// Stores why a replica's pod does not exist yet, or why its agent is not ready yet.
    pub(super) fn wait(&mut self, subject: Subject, wait: Wait) {
        self.replicas.entry(subject.id).and_modify(|replica| replica.wait(subject, wait));
    }

    /// The replicas whose agents have answered, with the addresses of the agents.
    pub(super) fn answering(&self) -> impl Iterator<Item = (ReplicaId, SocketAddr)> {
        self.replicas.iter().filter_map(|(id, replica)| Some((*id, replica.agent()?)))
    }

    /// The code that an agent of the job waits for and that nobody has.
    pub(super) fn wanted_code(&self, code: &JobCode) -> Option<CodeId> {
        code.wanted(self.replicas.values().filter_map(|replica| replica.tracked.seen.waits_for()))
    }

    /// Gives the members of the roster their seats in a start. `start` is the number of earlier starts.
    pub(super) fn enrol(&mut self, generation: Generation, roster: &Roster, (start, pushes): (u32, u32)) {
        for (id, seat) in roster.seats() {
            let membership = Membership { seat: seat.index, of: roster.len(), start, pushes };
            self.replicas.entry(id).and_modify(|replica| {
                replica.tracked.seen.enrolled = Some(Enrolled { generation, membership });
            });
        }
    }

    /// Creates and deletes these pods. Skips a pod whose earlier request may still take effect.
    pub(super) fn keep(&mut self, Upkeep { create, delete, next: _ }: Upkeep, spec: &JobSpec, machine: &Machine) {
        self.request(create, spec, machine);
        for id in delete {
            self.replace(id, machine);
        }
    }

    /// Applies the record's number of workers. Pods that a user asks for do not count as replacements of lost pods.
    pub(super) fn resize(&mut self, record: &JobRecord, has_changed: bool) {
        if has_changed {
            self.forget_replacements();
        }
        self.add(record.replicas().into_iter(), record.epoch);
    }

    fn forget_replacements(&mut self) {
        self.replicas.values_mut().for_each(|replica| replica.tracked.forget_replacements());
    }

    /// Prepares the replicas for the phase that the job enters.
    pub(super) fn enter(&mut self, phase: &JobPhase, Current { record, machine }: Current<'_>, code: &JobCode) {
        match phase {
            // After a resume, new pods do not count as replacements of lost pods.
            JobPhase::Suspended { .. } => self.forget_replacements(),
            JobPhase::Queued { .. } => self.replicas.values_mut().for_each(Replica::queue),
            // Long polls begin only now, because they would slow down the start of a large gang.
            JobPhase::Running { generation, .. } => {
                self.replicas.values().for_each(|replica| replica.watch_run(Some(*generation)));
            }
            JobPhase::Restarting { .. } => {
                self.replicas.values_mut().for_each(Replica::begin_again);
                self.follow(&record.spec, machine.policy(), code);
            }
            JobPhase::Finished { .. } if record.ended.is_some() => {
                self.replicas.values_mut().for_each(Replica::finish);
            }
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
    pub(super) fn hold_room(&self) -> bool {
        let holds = |tracked: &Tracked| tracked.seen.presence().has_containers() || tracked.may_appear();
        self.replicas.values().any(|replica| holds(&replica.tracked))
    }

    /// Whether the deletion of a pod that may still run was requested.
    pub(super) fn are_leaving(&self) -> bool {
        let is_leaving = |tracked: &Tracked| tracked.was_asked_to_go() && tracked.seen.presence().has_containers();
        self.replicas.values().any(|replica| is_leaving(&replica.tracked))
    }

    /// When the last exec.py of this start was started, if the agent of every member has reported the time.
    pub(super) fn last_launch(&self, start: Generation) -> Option<UnixMillis> {
        let members = self.replicas.values().filter(|replica| replica.tracked.is_member(start));
        let starts = members.map(|replica| replica.tracked.seen.agent.status()?.started_at);
        starts.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// The last lines that this replica has printed in its newest start. If its exec.py has failed, first waits until the
    /// last output is copied.
    pub(super) async fn last_lines(&self, id: ReplicaId, failure: &Failure) -> Vec<String> {
        let (Some(replica), Some(log)) = (self.replicas.get(&id), self.logs.of(id)) else { return vec![] };
        // The last lines lack any output that arrives after this timeout. That output is still copied.
        if let (Failure::ReplicaExited { .. }, Some(follower)) = (failure, &replica.follower) {
            let _ = timeout(LAST_OUTPUT_TIMEOUT, follower.caught_up()).await;
        }
        log.last_lines(LAST_LINES_MAX, replica.output_from).await
    }

    /// What the master keeps of the job.
    pub(super) fn kept(&self) -> Kept {
        let Self { logs, series, timeline, .. } = self;
        Kept { logs: Arc::clone(logs), series: Arc::clone(series), timeline: Arc::clone(timeline) }
    }

    /// The time since the last copied output of each running replica.
    pub(super) async fn silences(&self, horizon: Option<Generation>) -> BTreeMap<ReplicaId, Duration> {
        let now = SystemTime::now();
        let runs = |(_, replica): &(&ReplicaId, &Replica)| {
            matches!(ReplicaPhase::of(&replica.tracked.seen, horizon), ReplicaPhase::Running(_))
        };
        let mut silences = BTreeMap::new();
        for (id, _) in self.replicas.iter().filter(runs) {
            if let Some(last) = self.logs.last_output(*id).await {
                silences.insert(*id, now.duration_since(last).unwrap_or_default());
            }
        }
        silences
    }

    /// Marks the logs as complete when the copies in progress have ended or have taken too long.
    pub(super) fn complete_logs(&mut self, tasks: &mut JoinSet<()>) {
        let followers: Vec<_> = self.replicas.values_mut().filter_map(|replica| replica.follower.take()).collect();
        let logs = Arc::clone(&self.logs);
        tasks.spawn(async move {
            follower::await_copies(followers).await;
            logs.complete().await;
        });
    }

    /// Removes the job's output.
    pub(super) async fn remove_logs(&self) {
        if let Err(error) = self.logs.remove().await {
            warn!(job = %self.common.job.name, %error, "could not remove the job's output");
        }
    }

    /// When to renew the network policy of the job's pods, if it has pods.
    pub(super) fn prepare_at(&self) -> Option<Instant> {
        Some(self.prepare_at).filter(|_| self.has_live())
    }

    fn has_live(&self) -> bool {
        self.replicas.values().any(|replica| replica.tracked.seen.presence() == Presence::Live)
    }

    /// Renews the NetworkPolicy of a job that has pods, if it is time. No watch reports the policy's deletion.
    pub(super) fn prepare_again(&mut self, tasks: &mut JoinSet<()>) {
        if Instant::now() < self.prepare_at {
            return;
        }
        self.prepare_at = Instant::now() + PREPARE_INTERVAL;
        if !self.has_live() {
            return;
        }
        let Common { job, context, .. } = self.common.clone();
        tasks.spawn(async move {
            if let Err(error) = context.backend.prepare(&job).await {
                warn!(job = %job.name, error = error_chain(&error), "could not renew the job's network policy");
            }
        });
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
