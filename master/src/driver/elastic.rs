//! Notes why each start begins, and applies the changes that users ask for. For elastic jobs, also gives replicas their
//! seats, and creates and deletes pods.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use job::gang::{Gang, Member};
use job::observation::{DeletedBy, Enrolled, Presence};
use job::phase::{Ending, JobPhase};
use job::policy::{Deadline, Elastic, FORGIVE_AFTER, Policy};
use job::roster::{Roster, last_start, wanted};
use job::upkeep::{Replacements, Upkeep};
use protocol::agent::Membership;
use protocol::elastic::{CHANGES_MAX, ChangeCause, GangChange};
use protocol::failure::{Failure, Restarts};
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::progress::LostSteps;
use tokio::time::{Instant, timeout};

use super::follower::Follower;
use super::tracked::Replica;
use super::{Driver, tasks};
use crate::backend::PodTable;
use crate::store::JobRecord;

/// Maximum time to copy the last bytes from an agent that has ended.
const LAST_BYTES_TIMEOUT: Duration = Duration::from_millis(50);

/// Applies to the policy what users have changed since the job was accepted. `active_time` is the job's age without
/// suspensions. `elapsed` is the time since the driver began.
pub(super) fn follow(policy: &mut Policy, record: &JobRecord, (active_time, elapsed): (Duration, Duration)) {
    policy.elastic = record.workers().map(|workers| Elastic::of(workers, &record.spec.run_policy));
    policy.pushes = record.pushes;
    let is_suspended = record.suspension.since.is_some();
    if is_suspended == policy.is_suspended {
        return;
    }
    policy.is_suspended = is_suspended;
    let given = record.spec.run_policy.deadline_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    policy.deadline = given.filter(|_| !is_suspended).map(|given| Deadline::of(given, active_time, elapsed));
}

fn is_of_user(cause: &ChangeCause) -> bool {
    matches!(cause, ChangeCause::Pushed | ChangeCause::Resumed)
}

/// The starts of a job under this master. In a fixed job, `roster` stays empty, and `changes` contains only starts
/// that a user has caused. The record contains the causes of all other starts.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// The number of starts before the next start, from the record and this master's own starts.
    before: u32,
    /// The members of the newest start.
    roster: Vec<ReplicaId>,
    /// Whether no agent reported an earlier start when the newest start began.
    is_blind: bool,
    /// How often a user had pushed new code when this master last configured a start.
    pub(super) configured_pushes: u32,
    /// How often a user had pushed new code at the configuration of the newest start that ran.
    started_pushes: u32,
    /// The cause of the next start, if it is known already.
    cause: Option<ChangeCause>,
    /// The steps that are lost with the previous start.
    lost_steps: Option<LostSteps>,
    /// The newest starts with their causes, oldest first.
    changes: Vec<GangChange>,
}

impl Starts {
    pub(super) fn new(record: &JobRecord) -> Self {
        // After a takeover, an earlier start may have left no trace. So count at least one start.
        let before = record.starts().max(u32::from(record.epoch > 1));
        let started_pushes = record.halted.as_ref().map_or(0, |halted| halted.pushes);
        Self { before, started_pushes, ..Self::default() }
    }

    /// Whether there may have been an earlier start that no agent reported.
    pub(super) fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// The members of the newest start, by seat.
    pub(super) fn roster(&self) -> &[ReplicaId] {
        &self.roster
    }

    pub(super) fn started_pushes(&self) -> u32 {
        self.started_pushes
    }

    /// Stores how often a user had pushed new code when this start was configured. Call this function when all scripts
    /// of the start run, or when one of them has failed. If an earlier master configured the start, only the agents can
    /// report the number.
    pub(super) fn note_running(&mut self, generation: Generation, gang: &Gang) {
        self.started_pushes = gang.pushes_in(generation).unwrap_or(self.configured_pushes);
    }

    pub(super) fn changes(&self) -> &[GangChange] {
        &self.changes
    }

    /// Whether a user has caused this start, with new code or by resuming the job.
    pub(super) fn is_of_user(&self, generation: Generation) -> bool {
        self.changes.iter().any(|change| change.generation == generation && is_of_user(&change.cause))
    }

    /// Notes the failure that ends a start as the cause of the next start. Later failures are not noted.
    fn note_failure(&mut self, failure: Failure) {
        self.cause.get_or_insert(ChangeCause::Left { failure });
    }

    /// Notes the first failure of a member as the cause of the next start. After a takeover, a member may be missing:
    /// its pod was lost while no master ran. Then the exits of other members are consequences.
    fn note_first_failure(&mut self, gang: &Gang) {
        let is_cause = |failure: &Failure| gang.is_whole() || matches!(failure, Failure::ReplicaLost { .. });
        gang.first_failure().filter(is_cause).into_iter().for_each(|failure| self.note_failure(failure));
    }

    /// Stores the members of a start that an earlier master began.
    fn adopt(&mut self, gang: &Gang) {
        let mut members: Vec<_> = gang.members().map(|member| (gang.seat(member), member.id)).collect();
        members.sort_unstable();
        self.roster = members.into_iter().map(|(_, id)| id).collect();
    }

    fn begin(&mut self, generation: Generation, roster: &Roster, is_blind: bool, now: UnixMillis) {
        self.is_blind = is_blind;
        let earlier = mem::replace(&mut self.roster, roster.members().to_vec());
        let joined: Vec<ReplicaId> = roster.members().iter().filter(|id| !earlier.contains(id)).copied().collect();
        let cause = match self.cause.take() {
            Some(cause) => cause,
            None if earlier.is_empty() && generation.epoch == 1 => ChangeCause::First,
            None if earlier.is_empty() => ChangeCause::TakenOver,
            None if joined.is_empty() => ChangeCause::Shrunk,
            None => ChangeCause::Joined { replicas: joined },
        };
        self.change(generation, now, roster.workers(), cause);
    }

    fn change(&mut self, generation: Generation, at: UnixMillis, workers: u32, cause: ChangeCause) {
        self.changes.push(GangChange { generation, at, workers, cause, lost_steps: self.lost_steps.take() });
        if self.changes.len() > CHANGES_MAX {
            self.changes.remove(0);
        }
    }
}

impl Driver {
    /// The job's restarts. After [`FORGIVE_AFTER`] without a counted failure, an elastic job's failures are forgiven.
    pub(super) fn restarts(&self) -> Cow<'_, Restarts> {
        let restarts = &self.stored.record.restarts;
        let is_forgiven = |at: UnixMillis| self.context.age(at) >= FORGIVE_AFTER;
        if self.policy.elastic.is_some() && restarts.last_counted_at.is_some_and(is_forgiven) {
            // `step` reads only the numbers.
            let Restarts { counted, uncounted, .. } = *restarts;
            return Cow::Owned(Restarts { counted, uncounted, forgiven: counted, ..Restarts::default() });
        }
        Cow::Borrowed(restarts)
    }

    /// The number of starts so far: the greatest number from the record, the agents and this master.
    pub(super) fn starts_so_far(&self, gang: &Gang) -> u32 {
        let known = gang.places().iter().filter_map(|place| Some(place.place.enrolled?.membership.start + 1)).max();
        self.starts.before.max(known.unwrap_or_default()).max(self.stored.record.starts())
    }

    /// Gives the members of the roster their seats in a start.
    pub(super) fn enrol(&mut self, generation: Generation, roster: &Roster) {
        let gang = self.gang();
        let start = self.starts_so_far(&gang);
        for (id, seat) in roster.seats() {
            let membership = Membership { seat: seat.index, of: roster.len(), start, pushes: self.policy.pushes };
            self.replicas.entry(id).and_modify(|replica| {
                replica.seen.enrolled = Some(Enrolled { generation, membership });
            });
        }
        self.starts.before = start + 1;
        self.starts.begin(generation, roster, last_start(&gang).is_none(), self.context.store.now());
    }

    /// If a user has caused this start of a fixed job, notes the cause.
    pub(super) fn note_fixed_start(&mut self, generation: Generation) {
        if self.policy.elastic.is_some() {
            return;
        }
        if let Some(cause) = self.starts.cause.take().filter(is_of_user) {
            let workers = self.stored.record.spec.worker_num;
            self.starts.change(generation, self.context.store.now(), workers, cause);
        }
    }

    /// Forgets lost steps that the script has saved meanwhile. A start may end before the script in a leaving pod ends.
    pub(super) fn note_saved(&mut self, gang: &Gang) {
        self.starts.lost_steps = self.starts.lost_steps.take().filter(|lost| !gang.has_saved(lost));
    }

    /// When a phase begins, notes why the previous start has ended. In an elastic job, also notes the members of a
    /// start that an earlier master began.
    pub(super) fn note_starts(&mut self, phase: &JobPhase, gang: &Gang) {
        if let (JobPhase::Stopping { ending, .. }, false) = (&self.phase, matches!(phase, JobPhase::Stopping { .. })) {
            self.starts.lost_steps = gang.unsaved_steps();
            if let Ending::Failed(known) = ending {
                // Every member has ended. The failure that came first may have been reported last.
                self.starts.note_failure(gang.cause(known.clone()));
            }
        }
        let is_unknown = self.policy.elastic.is_some() && self.starts.roster.is_empty();
        match phase {
            JobPhase::Starting { .. } | JobPhase::Running { .. } if is_unknown => self.starts.adopt(gang),
            // The runs that this master has stopped are no failures. Only the time that they get has changed.
            JobPhase::Stopping { generation, .. } if matches!(&self.phase, JobPhase::Stopping { generation: known, .. } if known == generation) =>
                {}
            // Do not look for a failure: a script that an earlier master has stopped for the push looks like a failure.
            JobPhase::Stopping { ending: Ending::Regroup, .. } if self.is_for_push(gang) => {
                self.starts.cause.get_or_insert(ChangeCause::Pushed);
            }
            // If a member has failed by now, the gang regroups because of this failure. Usually, somebody has stopped
            // the member's run.
            JobPhase::Stopping { ending: Ending::Regroup, .. } => self.starts.note_first_failure(gang),
            // A member was lost before any agent was asked to run exec.py.
            JobPhase::Restarting { .. } if matches!(self.phase, JobPhase::Starting { .. }) => {
                self.starts.note_first_failure(gang);
            }
            JobPhase::Restarting { .. } if matches!(self.phase, JobPhase::Suspended { .. }) => {
                self.starts.cause = Some(ChangeCause::Resumed);
            }
            JobPhase::Restarting { .. } if self.has_code_for_halted() => self.starts.cause = Some(ChangeCause::Pushed),
            JobPhase::Stopping {
                ending: Ending::Succeeded | Ending::Failed(_) | Ending::Cancelled | Ending::Suspended,
                ..
            }
            | JobPhase::Halted { .. }
            | JobPhase::Suspended { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Running { .. }
            | JobPhase::Pending { .. }
            | JobPhase::Queued { .. }
            | JobPhase::Restarting { .. }
            | JobPhase::Releasing { .. }
            | JobPhase::Finished { .. } => {}
        }
    }

    /// Whether the gang regroups because a user has pushed new code. A fixed job regroups for no other reason.
    fn is_for_push(&self, gang: &Gang) -> bool {
        let pushes = |member: &Member| member.place.enrolled.map(|enrolled| enrolled.membership.pushes);
        let is_outdated = |member: &Member| pushes(member).is_some_and(|pushes| pushes < self.policy.pushes);
        self.policy.elastic.is_none() || gang.any(is_outdated)
    }

    /// Whether the job is halted, and a user has pushed new code since.
    fn has_code_for_halted(&self) -> bool {
        matches!(&self.phase, JobPhase::Halted(halt) if halt.has_new_code(&self.policy))
    }

    /// Creates and deletes these pods. Skips a pod whose earlier request may still take effect.
    pub(super) fn keep(&mut self, Upkeep { create, delete, next: _ }: Upkeep) {
        self.request_pods(create.into_iter().collect());
        for id in delete {
            self.replace(id);
        }
    }

    /// Deletes one pod after its output is copied.
    fn replace(&mut self, id: ReplicaId) {
        let soon = self.policy.release_timeout;
        let Some(replica) = self.replicas.get_mut(&id).filter(|replica| !replica.was_asked_to_go_within(soon)) else {
            return;
        };
        replica.deletion_asked_at = Some(Instant::now());
        let mut patience = tasks::COPY_TIMEOUT;
        match replica.seen.presence() {
            Presence::Live => replica.seen.deleted_by = DeletedBy::ThisMaster,
            // The agent is dead. Only bytes that are in transit can still arrive.
            Presence::Occupied | Presence::Ended | Presence::Absent => patience = LAST_BYTES_TIMEOUT,
        }
        // An agent that does not answer has no further output.
        let follower = replica.follower.as_ref().filter(|_| !replica.seen.agent.is_lost());
        let copied = OptionFuture::from(follower.map(Follower::caught_up));
        let (context, job, standing) = (Arc::clone(&self.context), self.stored.key(), replica.seen.agent.standing());
        replica.deletion = Some(tasks::spawn(&self.reporter, async move {
            // Output that is not copied within `patience` is lost with the pod.
            let _ = timeout(patience, copied).await;
            tasks::replace(context.backend.as_ref(), &job, id, standing).await;
        }));
    }

    /// Begins to track the replicas that still have a pod although the job now needs fewer workers, or has ended.
    pub(super) fn add_listed(&mut self, table: &PodTable) {
        let unknown: Vec<ReplicaId> = table.keys().filter(|id| !self.replicas.contains_key(id)).copied().collect();
        self.add(&unknown);
    }

    fn add(&mut self, replicas: &[ReplicaId]) {
        self.channels.logs.add(replicas);
        let epoch = self.stored.record.epoch;
        for id in replicas {
            self.replicas.entry(*id).or_insert_with(|| Replica::first(epoch));
        }
    }

    /// The replicas that have no pod and need none, because enough other replicas have pods.
    pub(super) fn unwanted(&self) -> BTreeSet<ReplicaId> {
        let Some(elastic) = self.policy.elastic else { return BTreeSet::new() };
        let gang = self.gang();
        let absent = gang.places().iter().filter(|place| place.pod == Presence::Absent && !gang.has(place));
        let mut unwanted: BTreeSet<ReplicaId> = absent.map(|place| place.id).collect();
        for place in wanted(&gang, elastic.workers) {
            unwanted.remove(&place.id);
        }
        unwanted
    }

    /// Applies the record's number of workers, suspension and code.
    pub(super) fn follow_record(&mut self) {
        let active_time = self.stored.record.active_time(self.context.store.now());
        let before = self.policy.elastic;
        follow(&mut self.policy, &self.stored.record, (active_time, self.began.elapsed()));
        self.code.follow(self.stored.record.code());
        if self.policy.elastic.is_none() || self.stored.record.ended.is_some() {
            return;
        }
        if self.policy.elastic != before {
            // Pods that a user asks for do not count as replacements of lost pods.
            self.replicas.values_mut().for_each(|replica| replica.replacements = Replacements::default());
        }
        self.add(&self.stored.record.replicas());
    }
}
