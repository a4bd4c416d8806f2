//! Which pods to create and to delete before the end of a job, and the pauses between replacements.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::elastic::Workers;
use protocol::ids::{ReplicaId, Role};
use protocol::pause::doubled;

use super::gang::{Gang, Place};
use super::observation::Presence;
use super::roster::wanted;

/// The pods to create and to delete now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// The replicas that need a pod.
    pub create: Vec<ReplicaId>,
    /// The replicas whose pod has ended, cannot serve a start, or is not wanted any more.
    pub delete: Vec<ReplicaId>,
    /// When the next pod may be created, as the time since the driver began.
    pub next: Option<Duration>,
}

/// How many workers may get pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// As many as the job wants.
    Free,
    /// At most this number. Workers with a node stay, and pods without a node beyond this number are deleted.
    UpTo(usize),
    /// No replica gets a pod, and no pod is deleted because of this rule.
    None,
}

/// The wanted replicas that may have a pod now.
fn limited<'g, 'a>(wanted: Vec<&'g Place<'a>>, growth: Growth) -> Vec<&'g Place<'a>> {
    let has_node = |place: &Place<'_>| place.seen.presence() != Presence::Absent && place.seen.has_node();
    match growth {
        Growth::Free => wanted,
        Growth::None => wanted.into_iter().filter(|place| place.seen.presence() != Presence::Absent).collect(),
        Growth::UpTo(most) => {
            let (workers, mut chosen): (Vec<&Place<'_>>, Vec<&Place<'_>>) =
                wanted.into_iter().partition(|place| place.id.role == Role::Worker);
            let (with_node, without): (Vec<&Place<'_>>, Vec<&Place<'_>>) =
                workers.into_iter().partition(|place| has_node(place));
            let room = most.saturating_sub(with_node.len());
            chosen.extend(with_node.into_iter().chain(without.into_iter().take(room)));
            chosen
        }
    }
}

/// Decides which pods of a job to create and to delete. While the gang is in a start, the pods of its members are
/// neither deleted nor replaced, because they show how the start ended.
pub fn upkeep(gang: &Gang<'_>, workers: Workers, growth: Growth, is_in_start: bool, now: Duration) -> Upkeep {
    let wanted = limited(wanted(gang, workers), growth);
    let is_free = |place: &Place<'_>| !(is_in_start && gang.has(place));
    let absent = wanted.iter().filter(|place| place.seen.presence() == Presence::Absent && is_free(place));
    let (create, later): (Vec<&Place<'_>>, Vec<&Place<'_>>) = absent.partition(|place| place.create_at <= now);
    let ids: BTreeSet<ReplicaId> = wanted.iter().map(|place| place.id).collect();
    let is_surplus = |place: &Place<'_>| !ids.contains(&place.id);
    let is_useless = |place: &Place<'_>| match place.seen.presence() {
        Presence::Absent => false,
        Presence::Occupied | Presence::Ended => true,
        Presence::Live if is_surplus(place) => !place.seen.may_run() || !place.is_fit(),
        // The cluster keeps trying to start a hopeless pod.
        Presence::Live => !place.is_fit() && !place.is_hopeless(),
    };
    let delete = gang.places().iter().filter(|place| is_free(place) && !place.is_on_its_way() && is_useless(place));
    Upkeep {
        create: create.into_iter().map(|place| place.id).collect(),
        delete: delete.map(|place| place.id).collect(),
        next: later.into_iter().map(|place| place.create_at).min(),
    }
}

/// First pause between two replacements of one replica's pod.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two replacements of one replica's pod.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// After this time without a replacement, the pauses begin again at [`FIRST_PAUSE`].
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Spaces the replacements of one replica's pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replacements {
    /// The number of pods created so far. After [`FORGET_AFTER`] without a new pod, all these pods count as one.
    created: u32,
    /// When the newest pod was created, as the time since the driver began.
    last: Duration,
}

impl Replacements {
    /// Notes that a pod is created now.
    pub fn note(&mut self, now: Duration) {
        if now >= self.last + FORGET_AFTER {
            self.created = self.created.min(1);
        }
        *self = Self { created: self.created.saturating_add(1), last: now };
    }

    /// When the next pod may be created. Pauses count from the creation of the newest pod. The first pod and its first
    /// replacement have no pause, and each further pause doubles.
    pub fn next_at(self) -> Duration {
        let earlier = self.created.checked_sub(2);
        earlier.map_or(Duration::ZERO, |earlier| self.last + doubled(FIRST_PAUSE, earlier, LONGEST_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_between_replacements_double_up_to_a_limit_and_begin_again_after_a_long_time() {
        let mut replacements = Replacements::default();
        let mut now = Duration::from_secs(5);
        let mut pauses = vec![];
        for _ in 0..13 {
            now = now.max(replacements.next_at());
            replacements.note(now);
            pauses.push(replacements.next_at().saturating_sub(now).as_secs());
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        now += FORGET_AFTER;
        replacements.note(now);
        assert_eq!(replacements.next_at() - now, FIRST_PAUSE, "the pauses do not begin again at the shortest");
    }
}
