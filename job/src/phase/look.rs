//! When the driver must look at a job again although nothing has happened, and the upkeep of the pods in each phase.

use std::time::Duration;

use protocol::ids::Role;

use super::{Action, Gathering, Halt, JobPhase, PodSelection, Seen, elastic, stop, suspension};
use crate::policy::{Elastic, Policy};
use crate::turns::Turn;
use crate::upkeep::{Growth, Upkeep, missing, upkeep};

/// When the driver must send [`JobEvent::Observed`](super::JobEvent::Observed) besides [`JobPhase::deadline`], even if
/// nothing else happens. `phase` and `actions` are what [`step`](super::step) has returned.
pub fn next_look(phase: &JobPhase, actions: &[Action], seen: Seen<'_>) -> Option<Duration> {
    let upkeep = actions.iter().find_map(|action| if let Action::Keep(upkeep) = action { Some(upkeep) } else { None });
    // A request may have no effect, so check again later.
    let is_busy = |upkeep: &&Upkeep| !upkeep.create.is_empty() || !upkeep.delete.is_empty();
    let again = upkeep.filter(is_busy).map(|_| seen.now + seen.policy.release_timeout);
    let own = elastic::next_look(phase, seen);
    own.into_iter().chain(upkeep.and_then(|upkeep| upkeep.next)).chain(again).filter(|at| *at > seen.now).min()
}

/// The pods to create and to delete in this phase, besides those that other actions of the phase create and delete.
pub(super) fn upkeep_in(phase: &JobPhase, seen: Seen<'_>) -> Upkeep {
    match (phase, &seen.policy.elastic) {
        (JobPhase::Suspended { .. } | JobPhase::Queued { .. }, _) => suspension::upkeep(seen.gang),
        // Failures and restarts of a fixed job decide which pods to delete.
        (JobPhase::Pending { .. }, None) => match seen.turn {
            Turn::Go | Turn::Minimum => missing(seen.gang),
            Turn::Hold | Turn::Queue(_) => Upkeep::default(),
        },
        (
            JobPhase::Pending { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Running { .. }
            | JobPhase::Halted { .. }
            | JobPhase::Restarting { without: PodSelection::Unfit, .. },
            Some(elastic),
        ) => upkeep(seen.gang, elastic.workers, growth(elastic, seen), seen.now),
        (
            JobPhase::Starting { .. }
            | JobPhase::Running { .. }
            | JobPhase::Halted { .. }
            | JobPhase::Restarting { .. }
            | JobPhase::Stopping { .. }
            | JobPhase::Releasing { .. }
            | JobPhase::Finished { .. },
            _,
        ) => Upkeep::default(),
    }
}

/// How many workers of an elastic job may get pods now.
fn growth(elastic: &Elastic, seen: Seen<'_>) -> Growth {
    let members = seen.gang.members().filter(|member| member.id.role == Role::Worker).count();
    match seen.turn {
        Turn::Go => Growth::Free,
        Turn::Minimum => Growth::UpTo(members.max(elastic.workers.min as usize)),
        Turn::Hold | Turn::Queue(_) => Growth::None,
    }
}

impl JobPhase {
    /// The next time limit of the phase or the job, when the driver must send
    /// [`JobEvent::Observed`](super::JobEvent::Observed).
    pub fn deadline(&self, policy: &Policy) -> Option<Duration> {
        let job = policy.deadline.map(|deadline| deadline.at);
        let earlier = |own: Duration| job.map_or(own, |job| own.min(job));
        match self {
            Self::Pending { gathering: Gathering { is_gated: true, .. }, .. } | Self::Queued { .. } => job,
            Self::Pending { since, .. } | Self::Starting { since, .. } => Some(earlier(*since + policy.start_timeout)),
            Self::Restarting { until, .. } | Self::Halted(Halt { until, .. }) => Some(earlier(*until)),
            Self::Stopping { since, grace, .. } => Some(*since + stop::limit(*grace, policy)),
            Self::Releasing { since, .. } => Some(*since + policy.release_timeout),
            Self::Running { .. } => job,
            Self::Suspended { .. } | Self::Finished { .. } => None,
        }
    }
}
