//! The state machine of a job under one driver: the phase, the rules, and the times at which the driver must look again.

use std::time::Duration;

use job::phase::JobPhase;
use job::policy::{Deadline, Policy, RELEASE_TIMEOUT, Wishes};
use protocol::elastic::Workers;
use protocol::ids::Generation;
use tokio::time::Instant;

use crate::store::JobRecord;

/// Maximum number of replicas in a small gang. The driver handles each event of a small gang at once.
pub(super) const SMALL_GANG: usize = 64;
/// Time between two steps of a larger gang, for each replica.
const PAUSE_OF_REPLICA: Duration = Duration::from_micros(50);

/// The phase and the rules of one job.
pub(super) struct Machine {
    phase: JobPhase,
    policy: Policy,
    began: Instant,
    /// When the driver must check the job's upkeep or size again.
    look_at: Option<Instant>,
    /// Until when pods and agents need not be looked at again.
    rests_until: Option<Instant>,
    /// When the finished job is deleted, if it has a time to live or there are too many finished jobs.
    forget_at: Option<Instant>,
}

/// The record and the phase of a job at one moment.
#[derive(Clone, Copy)]
pub(super) struct Current<'a> {
    pub(super) record: &'a JobRecord,
    pub(super) machine: &'a Machine,
}

impl Machine {
    pub(super) fn new(phase: JobPhase, policy: Policy) -> Self {
        Self { phase, policy, began: Instant::now(), look_at: None, rests_until: None, forget_at: None }
    }

    pub(super) fn phase(&self) -> &JobPhase {
        &self.phase
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The oldest generation whose runs count.
    pub(super) fn horizon(&self) -> Option<Generation> {
        self.phase.horizon()
    }

    /// When this driver began. Times in the phase count from here.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// The time since the driver began.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Stores when the driver must look again, as the time since the driver began.
    pub(super) fn look_at(&mut self, at: Option<Duration>) {
        self.look_at = at.map(|at| self.began + at);
    }

    /// After a step of a gang with this many replicas, lets the events of pods and agents gather for a moment. Each step
    /// looks at all replicas, and a thousand replicas cause thousands of events.
    pub(super) fn rest(&mut self, replicas: usize) {
        let pause = PAUSE_OF_REPLICA * u32::try_from(replicas).unwrap_or(u32::MAX);
        self.rests_until = (replicas > SMALL_GANG).then(|| Instant::now() + pause);
    }

    /// Until when the events gather, if they do.
    pub(super) fn rests_until(&self) -> Option<Instant> {
        self.rests_until.filter(|until| *until > Instant::now())
    }

    pub(super) fn enter(&mut self, phase: JobPhase) {
        self.phase = phase;
    }

    /// Applies what users have changed in the record. `active_time` is the job's age without suspensions.
    pub(super) fn follow(&mut self, record: &JobRecord, active_time: Duration) {
        let elapsed = self.elapsed();
        follow(&mut self.policy.wishes, record, (active_time, elapsed));
    }

    /// Lets the finished job be deleted at this time.
    pub(super) fn forget_at(&mut self, at: Option<Instant>) {
        self.forget_at = at;
    }

    /// Whether the job has finished, and the time to delete it has come.
    pub(super) fn is_over(&self) -> bool {
        let is_its_time = self.forget_at.is_some_and(|time| time <= Instant::now());
        self.is_finished() && is_its_time
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, JobPhase::Finished { .. })
    }

    /// The next time limit of the phase, the end of the time to live, or the next look. If a time limit has passed, the
    /// driver has already acted, and checks again after [`RELEASE_TIMEOUT`]. With `is_emptied`, the driver
    /// always checks again after this time, because no event reports that a pod has survived its deletion.
    pub(super) fn wake_at(&self, is_emptied: bool) -> Option<Instant> {
        let later = Instant::now() + RELEASE_TIMEOUT;
        let deadline = self.phase.deadline(&self.policy).map(|at| self.began + at).or(self.forget_at);
        let act_at = if is_emptied { Some(later) } else { deadline };
        act_at.map(|at| if at <= Instant::now() { later } else { at }).into_iter().chain(self.look_at).min()
    }
}

/// Follows what users have changed since the job was accepted. `active_time` is the job's age without suspensions.
/// `elapsed` is the time since the driver began.
pub(super) fn follow(wishes: &mut Wishes, record: &JobRecord, (active_time, elapsed): (Duration, Duration)) {
    wishes.workers = record.workers().map_or(wishes.workers, |workers| with_enough_memory(workers, record));
    wishes.pushes = record.pushes;
    let is_suspended = record.suspension.since.is_some();
    if is_suspended == wishes.is_suspended {
        return;
    }
    wishes.is_suspended = is_suspended;
    let given = record.spec.run_policy.deadline_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    wishes.deadline = if is_suspended { None } else { given.map(|given| Deadline::of(given, active_time, elapsed)) };
}

/// The numbers of workers with which a start has enough memory for its batch.
fn with_enough_memory(workers: Workers, record: &JobRecord) -> Workers {
    let needed = record.scaled_spec().workers_for_batch(|replica| record.restarts.batch_limit(replica));
    Workers { min: needed.map_or(workers.min, |needed| needed.clamp(workers.min, workers.max)), ..workers }
}
