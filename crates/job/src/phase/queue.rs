//! A gang that waits for its turn and has no pods, because an earlier gang needs the room.

use std::time::Duration;

use protocol::ids::JobName;

use super::stop::fail;
use super::verdict::has_live_run;
use super::{Action, Gathering, JobPhase, PodSelection, Seen};
use crate::gang::Place;
use crate::observation::{Presence, Wait};
use crate::turns::Turn;

/// Deletes all pods of a gathering gang if an earlier gang needs their room. `None` if the gang keeps its pods, or if
/// exec.py may still run in one of the pods.
pub(super) fn enter(gathering: Gathering, seen: Seen<'_>) -> Option<(JobPhase, Vec<Action>)> {
    let Turn::Queue(behind) = seen.turn else { return None };
    let gang = seen.gang;
    let may_run = gang.any_place(|place| place.seen.may_run()) || gang.newest_launch().is_some() || has_live_run(gang);
    let phase = JobPhase::Queued { gathering, behind: behind.clone() };
    (!may_run).then(|| (phase, vec![Action::DeletePods(PodSelection::All)]))
}

/// Gathers the gang when its turn has come and its old pods are gone. The start timeout begins then.
pub(super) fn queued(gathering: Gathering, behind: JobName, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    if let Some(failure) = seen.overdue() {
        return fail(&JobPhase::Queued { gathering, behind }, failure, seen);
    }
    let has_pods = seen.gang.any_place(|place| place.seen.presence() != Presence::Absent);
    let phase = match seen.turn {
        Turn::Go | Turn::Minimum if !has_pods => {
            let gathering = Gathering { ready_since: None, is_held_back: false, ..gathering };
            JobPhase::Pending { gathering, since: seen.now }
        }
        Turn::Queue(behind) => JobPhase::Queued { gathering, behind: behind.clone() },
        Turn::Go | Turn::Minimum | Turn::Hold(_) => JobPhase::Queued { gathering, behind },
    };
    (phase, vec![])
}

/// Notes whether another program holds one of the pods back, or the gang waits for an earlier gang. The start timeout
/// begins again when it waits no more.
pub(super) fn at_gate(gathering: Gathering, since: Duration, seen: Seen<'_>) -> (Gathering, Duration) {
    let is_held = |place: &Place<'_>| matches!(place.seen.waits_for(), Some(Wait::Gated(_)));
    let is_held_back = seen.gang.any_place(is_held) || matches!(seen.turn, Turn::Hold(_));
    let since = if gathering.is_held_back && !is_held_back { seen.now } else { since };
    (Gathering { is_held_back, ..gathering }, since)
}
