//! Decides when the start of a running gang ends, and with which outcome.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::Generation;

use super::stop::{fail, stop};
use super::{Action, Ending, JobPhase, Seen};
use crate::gang::{Member, was_stopped};
use crate::roster::resize;

pub(super) fn running(generation: Generation, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let phase = JobPhase::Running { generation, since };
    if seen.policy.success.is_met(seen.gang) {
        return stop(&phase, Ending::Succeeded, seen);
    }
    let failure = seen.gang.first_failure().or_else(|| seen.overdue());
    match (failure, &seen.policy.elastic) {
        (Some(failure), _) if was_to_start_again(&failure, Some(generation), seen) => {
            stop(&phase, Ending::Regroup, seen)
        }
        (Some(failure), _) => fail(&phase, failure, seen),
        (None, _) if is_outdated(generation, seen) => stop(&phase, Ending::Regroup, seen),
        (None, Some(elastic)) if resize(seen.gang, elastic, since, seen.now).is_some() => {
            stop(&phase, Ending::Regroup, seen)
        }
        (None, _) => (phase, vec![]),
    }
}

/// Whether an earlier master has stopped this start to begin another start, with other members or with new code.
pub(super) fn was_to_start_again(failure: &Failure, generation: Option<Generation>, seen: Seen<'_>) -> bool {
    let has_reason = || seen.policy.elastic.is_some() || generation.is_some_and(|start| is_outdated(start, seen));
    was_stopped(failure) && has_reason()
}

/// Whether new code must end this start: a user has pushed the code since the start began. After a member has
/// succeeded, new code does not end the start.
fn is_outdated(generation: Generation, seen: Seen<'_>) -> bool {
    let is_older = |member: &Member| {
        let known = member.place.enrolled.filter(|enrolled| enrolled.generation == generation);
        known.is_some_and(|enrolled| enrolled.membership.pushes < seen.policy.pushes)
    };
    seen.gang.any(is_older) && !seen.gang.any(|member| member.phase.has_succeeded())
}
