//! An evaluator that fails while the others train starts again alone. No other replica needs it, because TF_CONFIG does
//! not list it as a member of the cluster.

use protocol::ids::{Generation, Role};

use super::{Action, Seen};
use crate::alone::returns_alone;
use crate::gang::Place;
use crate::observation::Presence;
use crate::roster::is_ready;
use crate::upkeep::Upkeep;

/// The upkeep of a running gang, with a new pod for each evaluator that starts again alone.
pub(super) fn with_evaluators(mut upkeep: Upkeep, seen: Seen<'_>) -> Upkeep {
    for member in seen.gang.members().filter(|member| returns_alone(member, seen.gang, seen.policy)) {
        match member.seen.presence() {
            Presence::Absent if member.create_at <= seen.now => upkeep.create.push(member.id),
            Presence::Absent => upkeep.next = upkeep.next.into_iter().chain([member.create_at]).min(),
            Presence::Live if member.is_on_its_way() => {}
            Presence::Live | Presence::Occupied | Presence::Ended => upkeep.delete.push(member.id),
        }
    }
    upkeep
}

/// Gives evaluators in new pods their place in the running start.
pub(super) fn rejoin(generation: Generation, seen: Seen<'_>) -> Vec<Action> {
    let is_back = |place: &&Place<'_>| {
        place.id.role == Role::Evaluator && !seen.gang.has(place) && is_ready(place) && !place.seen.may_run()
    };
    let back = seen.gang.places().iter().filter(is_back);
    back.map(|place| Action::Rejoin { generation, replica: place.id }).collect()
}
