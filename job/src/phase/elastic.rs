//! How the gang of an elastic job gathers, changes its size, and restarts.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::Generation;

use super::gathering::start;
use super::running::running;
use super::stop::{fail, stop};
use super::{Action, Ending, Gathering, JobPhase, Seen, StartStage, queue};
use crate::gang::{Member, is_disruption};
use crate::observation::DeletedBy;
use crate::policy::Elastic;
use crate::replica::ReplicaPhase;
use crate::roster::{self, Choice};

pub(super) fn pending(
    gathering: Gathering,
    since: Duration,
    elastic: &Elastic,
    seen: Seen<'_>,
) -> (JobPhase, Vec<Action>) {
    let (gathering, since) = queue::at_gate(gathering, since, seen);
    let phase = JobPhase::Pending { gathering, since };
    if let Some(failure) = seen.overdue() {
        return fail(&phase, failure, seen);
    }
    // In `Pending`, a start in which exec.py ran is always a start of an earlier master.
    if let Some(generation) = seen.gang.newest_launch() {
        return resume(generation, phase, seen);
    }
    // An earlier master may have asked a configured agent to run exec.py. That request may still take effect.
    if seen.is_taken_over() && seen.gang.any(|member| member.phase.was_configured() && !member.phase.is_dead()) {
        return stop(&phase, Ending::Regroup, seen);
    }
    match roster::choose(seen.gang, elastic, gathering.ready_since, seen.now) {
        Choice::Start(roster) => {
            let generation = gathering.next;
            let (phase, mut actions) = start(generation, StartStage::Configuring, seen);
            actions.insert(0, Action::Enrol { generation, roster });
            (phase, actions)
        }
        Choice::Wait { ready_since } => {
            if let Some(queued) = queue::enter(gathering, seen) {
                return queued;
            }
            if let Some(failure) = why_it_cannot_start(gathering, since, elastic, seen) {
                return fail(&phase, failure, seen);
            }
            (JobPhase::Pending { gathering: Gathering { ready_since, ..gathering }, since }, vec![])
        }
    }
}

/// Continues the start that an earlier master began, if all its members are known.
fn resume(generation: Generation, phase: JobPhase, seen: Seen<'_>) -> (JobPhase, Vec<Action>) {
    let gang = seen.gang;
    let is_whole = gang.is_whole();
    if is_whole && !gang.all(ReplicaPhase::was_launched) && gang.first_failure().is_none() {
        return start(generation, StartStage::Launching, seen);
    }
    if is_whole || seen.policy.success.is_met(gang) {
        return running(generation, seen.now, seen);
    }
    // A replica in which exec.py may still run may be the missing member. Wait for the replica's agent.
    if gang.any_place(|place| !gang.has(place) && place.place.may_run) {
        return (phase, vec![]);
    }
    stop(&JobPhase::Running { generation, since: seen.now }, Ending::Regroup, seen)
}

/// Why the gang cannot become large enough; `None` if it still can.
fn why_it_cannot_start(gathering: Gathering, since: Duration, elastic: &Elastic, seen: Seen<'_>) -> Option<Failure> {
    let Seen { gang, policy, now, .. } = seen;
    let is_first = roster::last_start(gang).is_none();
    if is_first && !gang.any_place(Member::has_joined) {
        // A pod that this master deletes is surplus.
        let others = gang.places().iter().filter(|place| place.deleted_by == DeletedBy::Others);
        let broken = others.filter_map(Member::failure).find(|failure| !is_disruption(failure));
        if broken.is_some() {
            return broken;
        }
    }
    // While a run of an earlier start may be alive, the start timeout does not apply: the job waits for that run's end.
    let is_over = now >= since + policy.start_timeout && !gathering.is_gated;
    let is_late = is_over && !gang.any_place(|place| place.place.may_run);
    is_late.then(|| {
        let wanted = roster::wanted(gang, elastic.workers);
        let is_needed = |place: &Member| wanted.iter().any(|wanted| wanted.id == place.id);
        gang.start_timeout(policy.start_timeout, |place| place.has_joined() || !is_needed(place))
    })
}

/// When the driver must look at an elastic job again, besides the job's time limits and upkeep.
pub(super) fn next_look(phase: &JobPhase, seen: Seen<'_>) -> Option<Duration> {
    let elastic = seen.policy.elastic.as_ref()?;
    match phase {
        JobPhase::Pending { gathering, .. } => {
            gathering.ready_since.map(|since| since + roster::window(seen.gang, elastic))
        }
        JobPhase::Running { since, .. } => Some(*since + roster::grow_interval(seen.gang, elastic)),
        JobPhase::Queued { .. }
        | JobPhase::Starting { .. }
        | JobPhase::Restarting { .. }
        | JobPhase::Stopping { .. }
        | JobPhase::Halted { .. }
        | JobPhase::Suspended { .. }
        | JobPhase::Releasing { .. }
        | JobPhase::Finished { .. } => None,
    }
}
