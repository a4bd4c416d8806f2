//! Applies the changes that users ask for. Also gives replicas their seats, and creates and deletes pods.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use job::gang::Gang;
use job::observation::{DeletedBy, Enrolled, Presence};
use job::policy::{Deadline, FORGIVE_AFTER, Policy};
use job::roster::{Roster, wanted};
use job::upkeep::{Replacements, Upkeep};
use protocol::agent::Membership;
use protocol::failure::Restarts;
use protocol::ids::{Generation, ReplicaId, UnixMillis};
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
    policy.workers = record.workers().unwrap_or(policy.workers);
    policy.pushes = record.pushes;
    let is_suspended = record.suspension.since.is_some();
    if is_suspended == policy.is_suspended {
        return;
    }
    policy.is_suspended = is_suspended;
    let given = record.spec.run_policy.deadline_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    policy.deadline = given.filter(|_| !is_suspended).map(|given| Deadline::of(given, active_time, elapsed));
}

impl Driver {
    /// The job's restarts. After [`FORGIVE_AFTER`] without a counted failure, an elastic job's failures are forgiven.
    pub(super) fn restarts(&self) -> Cow<'_, Restarts> {
        let restarts = &self.stored.record.restarts;
        let is_forgiven = |at: UnixMillis| self.context.age(at) >= FORGIVE_AFTER;
        if !self.policy.is_fixed() && restarts.last_counted_at.is_some_and(is_forgiven) {
            // `step` reads only the numbers.
            let Restarts { counted, uncounted, .. } = *restarts;
            return Cow::Owned(Restarts { counted, uncounted, forgiven: counted, ..Restarts::default() });
        }
        Cow::Borrowed(restarts)
    }

    /// The number of starts so far: the greatest number from the record, the agents and this master.
    pub(super) fn starts_so_far(&self, gang: &Gang) -> u32 {
        self.starts.so_far(gang, self.stored.record.starts())
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
        self.starts.begin(start, (generation, self.context.store.now()), roster, self.policy.kind);
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
        replica.seen.deleted_by = DeletedBy::ThisMaster;
        if replica.seen.presence() != Presence::Live {
            // The agent is dead. Only bytes that are in transit can still arrive.
            patience = LAST_BYTES_TIMEOUT;
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
        let gang = self.gang();
        let absent = gang.places().iter().filter(|place| place.pod == Presence::Absent && !gang.has(place));
        let mut unwanted: BTreeSet<ReplicaId> = absent.map(|place| place.id).collect();
        for place in wanted(&gang, self.policy.workers) {
            unwanted.remove(&place.id);
        }
        unwanted
    }

    /// Applies the record's number of workers, suspension and code.
    pub(super) fn follow_record(&mut self) {
        let active_time = self.stored.record.active_time(self.context.store.now());
        let before = self.policy.workers;
        follow(&mut self.policy, &self.stored.record, (active_time, self.began.elapsed()));
        self.code.follow(self.stored.record.code());
        if self.stored.record.ended.is_some() {
            return;
        }
        if self.policy.workers != before {
            // Pods that a user asks for do not count as replacements of lost pods.
            self.replicas.values_mut().for_each(|replica| replica.replacements = Replacements::default());
        }
        self.add(&self.stored.record.replicas());
    }
}
