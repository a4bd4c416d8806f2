//! Decides when the start of a running gang ends, and with which outcome.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::Generation;

use super::stop::{fail, stop};
use super::{Action, Ending, JobPhase, Seen, evaluator};
use crate::alone::first_failure;
use crate::gang::{Place, was_stopped};
use crate::roster::resize;

pub(super) fn running(generation: Generation, since: Duration, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let phase = JobPhase::Running { generation, since };
    if seen.policy.rules.success.is_met(seen.gang) {
        return stop(&phase, Ending::Succeeded, seen);
    }
    let failure = first_failure(seen.gang, seen.policy).or_else(|| seen.overdue());
    match failure {
        Some(failure) if was_to_start_again(&failure, generation, seen) => stop(&phase, Ending::Regroup, seen),
        Some(failure) => fail(&phase, failure, seen),
        None if is_outdated(generation, seen) || resize(seen.gang, seen.policy, since, seen.now).is_some() => {
            stop(&phase, Ending::Regroup, seen)
        }
        None => (phase, evaluator::rejoin(generation, seen)),
    }
}

/// Whether this start was stopped and nothing has failed in it. The first failure is a stopped run only if nothing else
/// has failed. In a fixed gang, a run that somebody else stops is a failure, with three exceptions. An earlier master
/// has begun this start and may have stopped it. Agents with a lease stop their runs by themselves. New code ends the
/// start anyway.
fn was_to_start_again(failure: &Failure, generation: Generation, seen: Seen<'_>) -> bool {
    let is_of_earlier_master = generation.epoch < seen.epoch;
    let has_reason = !seen.policy.is_fixed() || is_of_earlier_master || seen.policy.rules.lease.is_some();
    was_stopped(failure) && (has_reason || is_outdated(generation, seen))
}

/// Whether new code must end this start: a user has pushed the code since the start began. After a member has
/// succeeded, new code does not end the start.
fn is_outdated(generation: Generation, seen: Seen<'_>) -> bool {
    let is_older = |member: &Place<'_>| {
        let known = member.seen.enrolment().filter(|enrolled| enrolled.generation == generation);
        known.is_some_and(|enrolled| enrolled.membership.pushes < seen.policy.wishes.pushes)
    };
    seen.gang.any(is_older) && !seen.gang.any(|member| member.phase.has_succeeded())
}
