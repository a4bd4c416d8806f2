//! When the driver must look at a job again although nothing has happened, and the upkeep of the pods in each phase.

use std::time::Duration;

use protocol::ids::Role;

use super::{Action, Attempt, Gathering, Halt, JobPhase, Restart, Seen, evaluator, stop, suspension};
use crate::gang::Place;
use crate::policy::{Policy, RELEASE_TIMEOUT};
use crate::roster;
use crate::turns::Turn;
use crate::upkeep::{Growth, Upkeep, upkeep};

/// When the driver must send [`JobEvent::Observed`](super::JobEvent::Observed) besides [`JobPhase::deadline`], even if
/// nothing else happens. `phase` and `actions` are what [`step`](super::step) has returned.
pub fn next_look(phase: &JobPhase, actions: &[Action], seen: Seen<'_>) -> Option<Duration> {
    let upkeep = actions.iter().find_map(|action| if let Action::Keep(upkeep) = action { Some(upkeep) } else { None });
    // A request may have no effect, so check again later.
    let is_busy = |upkeep: &&Upkeep| !upkeep.create.is_empty() || !upkeep.delete.is_empty();
    let again = upkeep.filter(is_busy).map(|_| seen.now + RELEASE_TIMEOUT);
    resize_at(phase, seen)
        .into_iter()
        .chain(stops_at(phase))
        .chain(upkeep.and_then(|upkeep| upkeep.next))
        .chain(again)
        .filter(|at| *at > seen.now)
        .min()
}

/// The pods to create and to delete in this phase, besides those that other actions of the phase create and delete.
pub(super) fn upkeep_in(phase: &JobPhase, seen: Seen<'_>) -> Upkeep {
    match phase {
        JobPhase::Suspended { .. } | JobPhase::Queued { .. } => suspension::upkeep(seen.gang),
        JobPhase::Pending { .. } => gathering(seen),
        JobPhase::Running { .. } => evaluator::with_evaluators(kept(seen, true), seen),
        JobPhase::Starting { .. } | JobPhase::Halted { .. } | JobPhase::Restarting(Restart { is_empty: false, .. }) => {
            kept(seen, true)
        }
        JobPhase::Restarting(Restart { is_empty: true, .. })
        | JobPhase::Stopping { .. }
        | JobPhase::Releasing { .. }
        | JobPhase::Finished { .. } => Upkeep::default(),
    }
}

/// The upkeep of a gang that gathers. It is in a start only if an earlier master has begun this start, and exec.py ran.
fn gathering(seen: Seen<'_>) -> Upkeep {
    let upkeep = kept(seen, seen.gang.newest_launch().is_some());
    // An agent that has not answered yet may show that a lost pod was a member of the agent's start. Then this pod
    // shows how the start ended.
    let may_be_in_start = seen.is_taken_over() && seen.gang.any_place(Place::may_have_unknown_run);
    if may_be_in_start { Upkeep { delete: vec![], ..upkeep } } else { upkeep }
}

fn kept(seen: Seen<'_>, is_in_start: bool) -> Upkeep {
    upkeep(seen.gang, seen.policy.wishes.workers, growth(seen), is_in_start, seen.now)
}

/// How many workers may get pods now.
fn growth(seen: Seen<'_>) -> Growth {
    let members = seen.gang.members().filter(|member| member.id.role == Role::Worker).count();
    match seen.turn {
        Turn::Go => Growth::Free,
        Turn::Minimum => Growth::UpTo(members.max(seen.policy.wishes.workers.min as usize)),
        Turn::Hold(_) | Turn::Queue(_) => Growth::None,
    }
}

/// When the runs of a gang that stops must be dead, and when the grace of its evaluator ends.
fn stops_at(phase: &JobPhase) -> Vec<Duration> {
    let JobPhase::Stopping(stop) = phase else { return vec![] };
    vec![stop.evaluates_until, stop.since + stop::limit(stop.grace)]
}

/// When the gang may start with the workers that it has, or may grow.
fn resize_at(phase: &JobPhase, seen: Seen<'_>) -> Option<Duration> {
    if let JobPhase::Pending { gathering, .. } = phase {
        return gathering.ready_since.map(|since| since + roster::window(seen.gang));
    }
    let JobPhase::Running { since, .. } = phase else { return None };
    Some(*since + roster::grow_interval(seen.gang, seen.policy))
}

impl JobPhase {
    /// The next time limit of the phase or the job, when the driver must send
    /// [`JobEvent::Observed`](super::JobEvent::Observed).
    pub fn deadline(&self, policy: &Policy) -> Option<Duration> {
        let job = policy.wishes.deadline.map(|deadline| deadline.at);
        let earlier = |own: Duration| job.map_or(own, |job| own.min(job));
        match self {
            Self::Pending { gathering: Gathering { is_held_back: true, .. }, .. } | Self::Queued { .. } => job,
            Self::Pending { since, .. } | Self::Starting(Attempt { since, .. }) => {
                Some(earlier(*since + policy.rules.start_timeout))
            }
            Self::Restarting(Restart { until, .. }) | Self::Halted(Halt { until, .. }) => Some(earlier(*until)),
            Self::Stopping(stop) => Some(stop.evaluates_until + stop::limit(stop.grace)),
            Self::Releasing { since, .. } => Some(*since + RELEASE_TIMEOUT),
            Self::Running { .. } => job,
            Self::Suspended { .. } | Self::Finished { .. } => None,
        }
    }
}
