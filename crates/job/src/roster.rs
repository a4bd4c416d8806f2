//! Chooses the members of a job's next start, and decides when the gang changes its size.

use std::cmp::Reverse;
use std::time::Duration;

use protocol::elastic::Workers;
use protocol::ids::{Generation, ReplicaId, Role};
use protocol::run_policy::{GROW_INTERVAL_OF_HELPER_SECONDS, GROW_INTERVAL_SECONDS};

use super::gang::{Gang, HelperUse, Place};
use super::observation::Presence;
use super::policy::{GATHER, Policy, SETTLE};
use super::replica::ReplicaPhase;
use super::wait::Wait;

/// The replicas that take part in a start. Within a role, their order gives their seats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster(Vec<ReplicaId>);

impl Roster {
    /// Each replica with its seat: the role, and the index within the role in this start.
    pub fn seats(&self) -> impl Iterator<Item = (ReplicaId, ReplicaId)> {
        let mut taken = [0_u32; Role::ALL.len()];
        self.0.iter().map(move |id| {
            let index = &mut taken[id.role as usize];
            let seat = ReplicaId { role: id.role, index: *index };
            *index += 1;
            (*id, seat)
        })
    }

    /// The number of members.
    pub fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Whether the roster has no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of workers.
    pub fn workers(&self) -> u32 {
        u32::try_from(self.0.iter().filter(|id| id.role == Role::Worker).count()).unwrap_or(u32::MAX)
    }

    /// The members.
    pub fn members(&self) -> &[ReplicaId] {
        &self.0
    }
}

/// What a gathering gang does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The gang starts with these members.
    Start(Roster),
    /// The gang waits.
    Wait {
        /// Since when there are enough members; `None` if there are too few.
        ready_since: Option<Duration>,
    },
}

/// Chooses the members of the next start. `ready_since` is the value that the previous call for this start returned. A
/// worker that joins does not extend the time that the gang waits for other workers.
pub fn choose(gang: &Gang<'_>, policy: &Policy, ready_since: Option<Duration>, now: Duration) -> Choice {
    let (ready, missing): (Vec<&Place<'_>>, Vec<&Place<'_>>) =
        wanted(gang, policy.wishes.workers).into_iter().partition(|place| is_ready(place));
    let mut roster = Roster(ready.iter().map(|place| place.id).collect());
    if policy.is_fixed() {
        // The seat must be the replica's index, which TF_CONFIG and the success rule use.
        roster.0.sort_unstable();
    }
    let is_enough =
        roster.workers() >= policy.wishes.workers.min && missing.iter().all(|place| place.id.role == Role::Worker);
    if !is_enough {
        return Choice::Wait { ready_since: None };
    }
    let since = ready_since.unwrap_or(now);
    let is_over = now >= since + window(gang) || !missing.iter().any(|place| is_coming(place, now));
    // All runs of the earlier start must be dead, even runs in pods that the cluster is removing.
    if is_over && !gang.any_place(|place| place.seen.may_run()) {
        return Choice::Start(roster);
    }
    Choice::Wait { ready_since: Some(since) }
}

/// How long a gang that is large enough waits for further workers.
pub fn window(gang: &Gang<'_>) -> Duration {
    if last_start(gang).is_none() { GATHER } else { SETTLE }
}

/// The replicas that should have a pod: the chief, the parameter servers, the evaluator, and the maximum number of
/// workers. Within a role, replicas whose pod can take part in a start come first. Of these, the members of the newest
/// start come first, in the order of their seats. Replicas without such a pod come last.
pub fn wanted<'g, 'a>(gang: &'g Gang<'a>, workers: Workers) -> Vec<&'g Place<'a>> {
    let order = |place: &Place<'_>| {
        let known = place.seen.enrolment();
        let seat = known.map_or(place.id.index, |enrolled| enrolled.membership.seat);
        (place.id.role, !is_living(place), Reverse(known.map(|enrolled| enrolled.generation)), seat)
    };
    let mut wanted: Vec<&Place<'_>> =
        gang.places().iter().filter(|place| is_living(place) || is_planned(place, workers)).collect();
    wanted.sort_by_cached_key(|place| order(place));
    let mut room = workers.max;
    wanted.retain(|place| {
        let fits = place.id.role != Role::Worker || room > 0;
        if place.id.role == Role::Worker {
            room = room.saturating_sub(1);
        }
        fits
    });
    wanted
}

/// How a running gang must change its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// The gang has more workers than the maximum.
    Shrink,
    /// More workers can take part.
    Grow,
}

/// How a gang that has run since `since` must change its size; `None` if its size must stay. After a member has
/// succeeded, the size must stay.
pub fn resize(gang: &Gang<'_>, policy: &Policy, since: Duration, now: Duration) -> Option<Resize> {
    if gang.any(|member| member.phase.has_succeeded()) {
        return None;
    }
    let members = gang.members().filter(|member| member.id.role == Role::Worker).count();
    if members > policy.wishes.workers.max as usize {
        return Some(Resize::Shrink);
    }
    let wanted = wanted(gang, policy.wishes.workers);
    let is_due = now >= since + grow_interval(gang, policy) || wanted.iter().all(|place| is_ready(place));
    // An evaluator in a new pod does not change the size.
    let is_new = |place: &Place<'_>| is_ready(place) && !gang.has(place) && place.id.role != Role::Evaluator;
    (is_due && wanted.iter().any(|place| is_new(place))).then_some(Resize::Grow)
}

/// How long a running gang waits before it restarts to add workers. If every wanted worker is ready, the gang does not
/// wait. The default is shorter if the scripts of the chief and of all workers have reported a step with the helper,
/// because a restart then loses no step.
pub fn grow_interval(gang: &Gang<'_>, policy: &Policy) -> Duration {
    let mut training = gang.members().filter(|member| member.id.role.trains());
    let by_default = if training.all(|member| member.helper() == HelperUse::Stepped) {
        GROW_INTERVAL_OF_HELPER_SECONDS
    } else {
        GROW_INTERVAL_SECONDS
    };
    policy.rules.grow_interval.unwrap_or(Duration::from_secs(by_default.into()))
}

/// The newest start in which any replica's pod is enrolled.
pub fn last_start(gang: &Gang<'_>) -> Option<Generation> {
    gang.places().iter().filter_map(|place| Some(place.seen.enrolment()?.generation)).max()
}

/// Whether the replica has a pod that can take part in a start now or soon.
fn is_living(place: &Place<'_>) -> bool {
    place.seen.presence() == Presence::Live && place.is_fit()
}

/// Whether the replica exists if the job has its maximum number of workers.
fn is_planned(place: &Place<'_>, workers: Workers) -> bool {
    place.id.role != Role::Worker || place.id.index < workers.max
}

/// Whether the replica can take part in a start now.
pub(super) fn is_ready(place: &Place<'_>) -> bool {
    place.has_joined() && is_living(place)
}

/// Whether the replica may soon be ready. A replica whose pod cannot be scheduled will not be ready soon.
fn is_coming(place: &Place<'_>, now: Duration) -> bool {
    let is_unhindered = !place.seen.waits_for().is_some_and(Wait::is_obstacle);
    match (place.seen.presence(), &place.phase) {
        (Presence::Absent, ReplicaPhase::Lost(_)) => false,
        (Presence::Absent | Presence::Occupied | Presence::Ended, _) => is_unhindered && place.create_at <= now,
        (Presence::Live, ReplicaPhase::Scheduled) => true,
        (Presence::Live, ReplicaPhase::Requested) => is_unhindered,
        (
            Presence::Live,
            ReplicaPhase::Joined
            | ReplicaPhase::Configured(_)
            | ReplicaPhase::Running(_)
            | ReplicaPhase::Exited(..)
            | ReplicaPhase::Lost(_),
        ) => false,
    }
}
