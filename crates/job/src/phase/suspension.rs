//! Suspends and resumes a job when a user asks for it. A suspended job has no pods.

use protocol::ids::Generation;

use super::stop::stop;
use super::{Action, Ending, JobPhase, Restart, Seen};
use crate::gang::{Gang, Place};
use crate::observation::Presence;
use crate::upkeep::Upkeep;

/// Stops the runs in order to suspend the job. If the job has already succeeded, it ends instead.
pub(super) fn suspend(phase: &JobPhase, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let ending = if seen.policy.rules.success.is_met(seen.gang) { Ending::Succeeded } else { Ending::Suspended };
    stop(phase, ending, seen)
}

/// Suspends the job. Every run is dead.
pub(super) fn enter(next: Generation) -> (JobPhase, Vec<Action>) {
    (JobPhase::Suspended { next }, vec![Action::RecordSuspension])
}

/// After the user has resumed the job, waits in `Restarting` until the old pods are gone.
pub(super) fn suspended(next: Generation, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    if seen.policy.wishes.is_suspended {
        return (JobPhase::Suspended { next }, vec![]);
    }
    let restart = Restart { next, is_empty: true, until: seen.now, since: seen.now };
    (JobPhase::Restarting(restart), vec![])
}

/// Deletes every pod, except pods that the cluster is removing: a second deletion would shorten their grace
/// period.
pub(super) fn upkeep(gang: &Gang<'_>) -> Upkeep {
    let is_surplus = |place: &&Place<'_>| place.seen.presence() != Presence::Absent && !place.is_on_its_way();
    Upkeep { delete: gang.places().iter().filter(is_surplus).map(|place| place.id).collect(), ..Upkeep::default() }
}
