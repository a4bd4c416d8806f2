//! All replicas of a job together: whether they are ready, and which failure was the first.

use std::time::Duration;

use protocol::failure::{Failure, Loss};
use protocol::ids::{Generation, ReplicaId, UnixMillis};

use super::observation::{DeletedBy, LostRun, Observation, Presence};
use super::replica::ReplicaPhase;

/// One replica, where it stands, and what is left of its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub id: ReplicaId,
    /// Where it stands.
    pub phase: ReplicaPhase,
    /// Its pod.
    pub pod: Presence,
    /// Why its pod has no address yet, in the back end's words.
    pub waits_for: Option<String>,
    /// Who takes its pod away, if someone does.
    pub deleted_by: DeletedBy,
}

impl Member {
    /// What is seen of a replica, while runs of generations before `horizon` are history.
    pub fn of(id: ReplicaId, seen: &Observation, horizon: Option<Generation>) -> Self {
        let phase = ReplicaPhase::of(seen, horizon);
        let waits_for = seen.waits_for().map(str::to_owned);
        Self { id, phase, pod: seen.presence(), waits_for, deleted_by: seen.deleted_by }
    }

    /// Whether its pod lives, and was never told to run.
    pub fn is_idle(&self) -> bool {
        self.pod == Presence::Live && !self.phase.was_configured()
    }

    /// Whether its pod lives, and its run has not ended, or has not said so.
    pub fn is_unended(&self) -> bool {
        self.pod == Presence::Live && !self.phase.is_dead()
    }

    /// Whether another start can use its pod, or the pod that it is going to have. What this master has had deleted will
    /// go, however well it looks until then.
    pub fn is_fit(&self) -> bool {
        match self.pod {
            Presence::Absent => true,
            Presence::Live => self.deleted_by == DeletedBy::Others && !matches!(self.phase, ReplicaPhase::Lost(_)),
            Presence::Ended => false,
        }
    }

    /// Whether the cluster takes its pod away, and has not done so yet.
    pub fn is_leaving(&self) -> bool {
        let is_disrupted = matches!(&self.phase, ReplicaPhase::Lost(LostRun { loss: Loss::Disrupted, .. }));
        is_disrupted && self.pod == Presence::Live
    }

    /// Whether its agent has answered, and may still take a start or has had its own.
    pub fn has_joined(&self) -> bool {
        self.phase.has_joined() && !self.is_spent()
    }

    /// Whether its start was called back before exec.py was started, and its pod has ended since.
    pub fn is_spent(&self) -> bool {
        self.phase.was_called_back() && self.pod == Presence::Ended
    }

    /// Whether its agent has a place and has not answered, so that nobody knows what it runs.
    pub fn is_silent(&self) -> bool {
        self.phase == ReplicaPhase::Scheduled
    }

    /// Why this replica makes its generation fail, if it does.
    fn failure(&self) -> Option<Failure> {
        let replica = self.id;
        match &self.phase {
            succeeded if succeeded.has_succeeded() => None,
            ReplicaPhase::Exited(_, exit) => Some(Failure::ReplicaExited { replica, exit: exit.clone() }),
            ReplicaPhase::Lost(LostRun { reason, loss }) => {
                Some(Failure::ReplicaLost { replica, reason: reason.clone(), loss: *loss })
            }
            ReplicaPhase::Requested
            | ReplicaPhase::Scheduled
            | ReplicaPhase::Joined
            | ReplicaPhase::Configured(_)
            | ReplicaPhase::Running(_) => None,
        }
    }
}

/// Every replica of a job, in the plan's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang(Vec<Member>);

impl Gang {
    /// The gang of these members.
    pub fn new(members: Vec<Member>) -> Self {
        Self(members)
    }

    /// Its members.
    pub fn members(&self) -> &[Member] {
        &self.0
    }

    /// Whether `test` holds for every replica's phase.
    pub fn all(&self, test: impl Fn(&ReplicaPhase) -> bool) -> bool {
        self.0.iter().all(|member| test(&member.phase))
    }

    /// Whether `test` holds for a member.
    pub fn any(&self, test: impl Fn(&Member) -> bool) -> bool {
        self.0.iter().any(test)
    }

    /// The first failure in time, if there is one, while this master has stopped nothing: the earliest exit by the
    /// agents' clocks, for what comes after it is an echo; a lost pod, which has no time of its own, where no exec.py
    /// failed; a run that someone else stopped where there is nothing else, for the gang cannot go on without it.
    pub fn first_failure(&self) -> Option<Failure> {
        self.failures().min_by_key(|failure| (was_stopped(failure), time_of(failure)))
    }

    /// What a job failed of that `known` brought to its end: an earlier exit may have come to light since. Runs that
    /// were stopped and pods that were lost since are no cause, for by now we stop the ones and delete the others.
    pub fn cause(&self, known: Failure) -> Failure {
        if matches!(known, Failure::DeadlineExceeded { .. }) {
            return known;
        }
        let earlier = |one: Failure, other: Failure| if time_of(&other) < time_of(&one) { other } else { one };
        self.failures().filter(|failure| !was_stopped(failure)).fold(known, earlier)
    }

    fn failures(&self) -> impl Iterator<Item = Failure> {
        self.0.iter().filter_map(Member::failure)
    }

    /// The newest generation in which an exec.py was started.
    pub fn newest_launch(&self) -> Option<Generation> {
        let launched = self.0.iter().filter(|member| member.phase.was_launched() && !member.phase.was_called_back());
        launched.filter_map(|member| member.phase.generation()).max()
    }

    /// The newest generation that an agent was told of.
    pub fn newest_generation(&self) -> Option<Generation> {
        self.0.iter().filter_map(|member| member.phase.generation()).max()
    }

    /// A member whose agent has not been told of this generation, or has forgotten it.
    pub fn outside(&self, generation: Generation) -> Option<ReplicaId> {
        self.0.iter().find(|member| member.phase.generation() != Some(generation)).map(|member| member.id)
    }

    /// The failure of a gang of which some have not come so far in this time.
    pub fn start_timeout(&self, given: Duration, has_come: impl Fn(&Member) -> bool) -> Failure {
        let missing = || self.0.iter().filter(|member| !has_come(member));
        Failure::StartTimeout {
            missing: missing().map(|member| member.id).collect(),
            after_seconds: given.as_secs(),
            reason: missing().find_map(|member| member.waits_for.clone()),
        }
    }
}

/// When a failure was. What the cluster took away counts as the first, for the others die of it before it is heard of;
/// what else has no time of its own counts as the last.
fn time_of(failure: &Failure) -> UnixMillis {
    match failure {
        Failure::ReplicaExited { exit, .. } => exit.ended_at,
        Failure::ReplicaLost { loss: Loss::Disrupted, .. } => UnixMillis(0),
        Failure::ReplicaLost { loss: Loss::Broken | Loss::Hopeless, .. }
        | Failure::StartTimeout { .. }
        | Failure::DeadlineExceeded { .. } => UnixMillis(u64::MAX),
    }
}

fn was_stopped(failure: &Failure) -> bool {
    match failure {
        Failure::ReplicaExited { exit, .. } => exit.stopped,
        Failure::ReplicaLost { .. } | Failure::StartTimeout { .. } | Failure::DeadlineExceeded { .. } => false,
    }
}
