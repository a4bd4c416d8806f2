//! What a gathering gang still needs before it can start: pods with a node. Computed from the gang, never stored.

use protocol::ids::Role;

use super::gang::{Gang, Place};
use super::observation::{Presence, Wait};
use super::policy::Policy;
use super::roster::wanted;
use super::wait::Resources;

/// What a gathering gang still needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Need {
    /// Whether each pod that the gang needs has a node.
    pub is_complete: bool,
    /// Whether the scheduler or a quota must still decide on a needed pod.
    pub is_undecided: bool,
    /// Whether another program holds one of the pods back.
    pub is_gated: bool,
    /// The resources that are short: because of them, pods have no node or do not exist. Empty for a gang that is
    /// complete or gated.
    pub lacking: Resources,
}

impl Need {
    /// The need of a gang: its minimum of workers, and all replicas of other roles.
    pub fn of(gang: &Gang<'_>, policy: &Policy) -> Self {
        let wanted = wanted(gang, policy.wishes.workers);
        let is_worker = |place: &&&Place<'_>| place.id.role == Role::Worker;
        let workers = policy.wishes.workers.min as usize;
        let has = |test: &dyn Fn(&Place<'_>) -> bool| {
            let enough = wanted.iter().filter(is_worker).filter(|place| test(place)).count() >= workers;
            enough && wanted.iter().filter(|place| !is_worker(place)).all(|place| test(place))
        };
        let is_complete = has(&has_room);
        let is_gated = wanted.iter().any(|place| matches!(place.seen.waits_for(), Some(Wait::Gated(_))));
        let lacking = wanted.iter().filter_map(|place| place.seen.waits_for()?.lacking()).flatten().cloned();
        Self {
            is_complete,
            is_undecided: !has(&is_decided),
            is_gated,
            lacking: if is_complete || is_gated { Resources::new() } else { lacking.collect() },
        }
    }
}

fn has_room(place: &Place<'_>) -> bool {
    place.seen.presence() != Presence::Absent && place.seen.has_node()
}

fn is_decided(place: &Place<'_>) -> bool {
    has_room(place) || place.seen.waits_for().is_some()
}
