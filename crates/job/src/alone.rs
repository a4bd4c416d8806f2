//! Which failed replicas start again alone, while the others go on: evaluators, as often as the job may restart.

use protocol::failure::Failure;
use protocol::ids::Role;

use super::gang::{Gang, Place, was_stopped};
use super::observation::PodDeletion;
use super::policy::{Budget, Policy};

/// Whether this member is an evaluator that has failed, and that starts again without the others.
pub fn returns_alone(member: &Place<'_>, gang: &Gang<'_>, policy: &Policy) -> bool {
    let may_return = |failure: &Failure| match policy.budget_of(failure, member.helper()) {
        Some(Budget::Free) => true,
        Some(Budget::Counted) => !has_used_up(member, policy),
        None => false,
    };
    // This master deletes the pod only to replace it.
    let is_replaced = member.seen.deletion == PodDeletion::Asked;
    let failure = || member.failure().filter(|failure| !was_stopped(failure));
    let has_failed = || failure().is_some_and(|failure| is_replaced || may_return(&failure));
    may_ever_return(member, policy) && gang.newest_launch().is_some() && has_failed()
}

/// Whether this member is an evaluator that has started again alone as often as the job may restart.
pub fn has_used_up(member: &Place<'_>, policy: &Policy) -> bool {
    may_ever_return(member, policy) && member.failed_alone >= policy.rules.retries.max_restarts
}

fn may_ever_return(member: &Place<'_>, policy: &Policy) -> bool {
    policy.rules.evaluators_return && member.id.role == Role::Evaluator
}

/// The first failure that the gang must not ignore. See [`Gang::first_failure_of`].
pub fn first_failure(gang: &Gang<'_>, policy: &Policy) -> Option<Failure> {
    gang.first_failure_of(|member| !returns_alone(member, gang, policy))
}
