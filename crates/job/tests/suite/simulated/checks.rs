//! Checks of each call of `step`: which phases may follow, and which actions are allowed. The checks hold for any
//! observations, whether or not they make sense.

use std::collections::BTreeMap;

use job::alone::returns_alone;
use job::diagnosis::{Evidence, diagnose};
use job::gang::{Gang, Place};
use job::observation::Presence;
use job::phase::{Action, Attempt, JobPhase, PodSelection, Restart, Seen, StartStage};
use job::policy::Policy;
use job::roster::Roster;
use protocol::failure::{Failure, Restarts};
use protocol::ids::{Generation, ReplicaId, Role, UnixMillis};
use protocol::run_policy::CleanPods;
use protocol::view::JobResult;

/// One call of `step`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move<'a> {
    pub(crate) before: &'a JobPhase,
    pub(crate) after: &'a JobPhase,
    pub(crate) actions: &'a [Action],
    pub(crate) seen: Seen<'a>,
}

/// What one master has done so far.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The result that the record contains.
    result: Option<JobResult>,
    configured: Option<Generation>,
    launched: Option<Generation>,
    /// The newest start of all phases.
    newest: Option<Generation>,
}

impl History {
    /// The history of a master that begins with a record of this result.
    pub(crate) fn of(result: Option<JobResult>) -> Self {
        Self { result, ..Self::default() }
    }

    /// Checks the next move of the master.
    pub(crate) fn check(&mut self, moved: Move<'_>) {
        let Move { before, after, actions, seen } = moved;
        assert!(before == after || is_allowed(before, after), "{moved:#?}");
        if let JobPhase::Finished { .. } = before {
            assert_eq!((after, actions), (before, &*late(seen.policy.rules.clean_pods, seen.gang)), "{moved:#?}");
        }
        if let (JobPhase::Restarting(Restart { until, is_empty, .. }), JobPhase::Pending { .. }) = (before, after) {
            let are_gone = !is_empty || !seen.gang.any_place(|place| place.seen.presence() != Presence::Absent);
            assert!(seen.now >= *until && are_gone, "{moved:#?}");
        }
        for action in actions {
            self.check_action(action, moved);
        }
        if let Some(result) = after.result() {
            assert_eq!(Some(result), self.result.as_ref(), "the result differs from the conclusion: {moved:#?}");
        }
        if let Some(generation) = after.generation() {
            assert!(Some(generation) >= self.newest, "the number of the start decreases: {moved:#?}");
            self.newest = Some(generation);
        }
    }

    fn check_action(&mut self, action: &Action, moved: Move<'_>) {
        let Move { after, seen, .. } = moved;
        let starts = matches!(after, JobPhase::Pending { .. } | JobPhase::Starting { .. } | JobPhase::Running { .. });
        match action {
            Action::Keep(_) => check_upkeep(moved),
            Action::Enrol { generation, roster } => {
                assert!(starts && Some(*generation) > self.configured, "{moved:#?}");
                check_roster(roster, seen);
            }
            Action::Configure(generation) => {
                let is_new = Some(*generation) > self.configured && generation.epoch == seen.epoch;
                assert!(starts && is_new, "{moved:#?}");
                self.configured = Some(*generation);
            }
            Action::Launch(generation) => {
                // A member with a newer generation is harmless, because its agent refuses this launch.
                let is_configured = |member: &Place<'_>| member.phase.generation() >= Some(*generation);
                let returns = |member: &Place<'_>| returns_alone(member, seen.gang, seen.policy);
                let is_ready = seen.gang.members().all(|member| is_configured(member) || returns(member));
                assert!(starts && is_ready && Some(*generation) > self.launched, "{moved:#?}");
                self.launched = Some(*generation);
            }
            Action::RecordRestart(_) => check_all_dead(moved),
            Action::Conclude(result) => {
                check_all_dead(moved);
                assert_eq!(self.result.replace(result.clone()), None, "a second result is concluded: {moved:#?}");
            }
            Action::RecordHalt => {
                assert!(matches!(after, JobPhase::Halted(_)) && seen.policy.rules.retries.halt.is_some(), "{moved:#?}");
            }
            Action::RecordSuspension => assert!(matches!(after, JobPhase::Suspended { .. }), "{moved:#?}"),
            Action::Rejoin { generation, replica } => {
                let runs = matches!(after, JobPhase::Running { generation: running, .. } if running == generation);
                assert!(runs && replica.role == Role::Evaluator, "{moved:#?}");
            }
            Action::StopTraining { .. } | Action::StopRuns { .. } | Action::ReleasePods | Action::DeletePods(_) => {}
        }
    }
}

/// Whether a job may change from the phase `before` to the phase `after`.
fn is_allowed(before: &JobPhase, after: &JobPhase) -> bool {
    use JobPhase::{Finished, Halted, Pending, Queued, Releasing, Restarting, Running, Starting, Stopping, Suspended};
    use StartStage::{Configuring, Launching};
    match before {
        Pending { .. } => {
            matches!(after, Pending { .. } | Queued { .. } | Starting { .. } | Running { .. } | Stopping { .. })
        }
        Queued { .. } => matches!(after, Queued { .. } | Pending { .. } | Stopping { .. }),
        Starting(Attempt { stage: Configuring, .. }) => {
            matches!(after, Starting(Attempt { stage: Launching, .. }) | Restarting { .. } | Stopping { .. })
        }
        Starting(Attempt { stage: Launching, .. }) => matches!(after, Running { .. } | Stopping { .. }),
        Running { .. } => matches!(after, Stopping { .. }),
        Stopping { .. } => {
            matches!(after, Stopping { .. } | Halted { .. } | Restarting { .. } | Suspended { .. } | Releasing { .. })
        }
        Halted { .. } => matches!(after, Restarting { .. } | Stopping { .. } | Releasing { .. }),
        Restarting { .. } => matches!(after, Pending { .. } | Stopping { .. }),
        Suspended { .. } => matches!(after, Restarting { .. } | Stopping { .. }),
        Releasing { .. } => matches!(after, Finished { .. }),
        Finished { .. } => false,
    }
}

/// The expected actions for pods of a finished job.
fn late(clean_pods: CleanPods, gang: &Gang<'_>) -> Vec<Action> {
    let (which, has_any) = match clean_pods {
        CleanPods::All => (PodSelection::All, gang.any_place(|place| place.seen.presence() != Presence::Absent)),
        CleanPods::Running => (PodSelection::Live, gang.any_place(|place| place.seen.presence().has_containers())),
        CleanPods::None => (PodSelection::Idle, gang.any_place(Place::is_idle)),
    };
    if has_any { vec![Action::DeletePods(which)] } else { vec![] }
}

/// Pods are created only for replicas without a pod, and only if the job goes on. The pods of
/// members show how their start ended, so they stay.
fn check_upkeep(moved: Move<'_>) {
    let gang = moved.seen.gang;
    let kept =
        moved.actions.iter().filter_map(|action| if let Action::Keep(upkeep) = action { Some(upkeep) } else { None });
    let gives_back = matches!(moved.after, JobPhase::Suspended { .. } | JobPhase::Queued { .. });
    let goes_on = matches!(
        moved.after,
        JobPhase::Pending { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Running { .. }
            | JobPhase::Halted { .. }
            | JobPhase::Restarting { .. }
    );
    assert!(goes_on || gives_back, "pods change in this phase: {moved:#?}");
    // In `Pending`, a start in which no script ran is not continued.
    let is_in_start = gang.newest_launch().is_some() || !matches!(moved.after, JobPhase::Pending { .. });
    for upkeep in kept {
        let place = |id: &ReplicaId| gang.places().iter().find(|place| place.id == *id).expect("an unknown replica");
        let is_absent = |id: &ReplicaId| place(id).seen.presence() == Presence::Absent;
        assert!(upkeep.create.iter().all(|id| goes_on && is_absent(id)), "{moved:#?}");
        let returns = |id: &ReplicaId| {
            matches!(moved.after, JobPhase::Running { .. }) && returns_alone(place(id), gang, moved.seen.policy)
        };
        let shows_end = |id: &ReplicaId| is_in_start && gang.has(place(id)) && !returns(id);
        assert!(upkeep.delete.iter().all(|id| !is_absent(id) && (gives_back || !shows_end(id))), "{moved:#?}");
    }
}

/// A start has a number of workers in the job's range, and all replicas of other roles. In a fixed gang, the seats are
/// the indices.
fn check_roster(roster: &Roster, seen: Seen<'_>) {
    let workers = seen.policy.wishes.workers;
    assert!((workers.min..=workers.max).contains(&roster.workers()), "{roster:?} has not {workers:?}");
    let mut others = seen.gang.places().iter().filter(|place| place.id.role != Role::Worker);
    assert!(others.all(|place| roster.members().contains(&place.id)), "{roster:?} is not complete");
    let are_own = roster.seats().all(|(id, seat)| id == seat);
    assert!(are_own || !seen.policy.is_fixed(), "the seats of a fixed gang are not its indices: {roster:?}");
}

fn check_all_dead(moved: Move<'_>) {
    let may_run = |member: &Place<'_>| member.phase.was_configured() && !member.phase.is_dead();
    assert!(!moved.seen.gang.any(may_run), "the end is recorded while a run may be alive: {moved:#?}");
}

/// Adds a failed start to the restarts, as a driver does, and counts the restart.
pub(crate) fn note_restart(
    restarts: &mut Restarts,
    (failure, generation): (Failure, Option<Generation>),
    gang: &Gang<'_>,
    policy: &Policy,
) {
    let (now, budget) = (UnixMillis(0), policy.budget_of(&failure, gang.helper_of(&failure)));
    let silence = BTreeMap::new();
    let evidence = Evidence { generation, now, budget, last_lines: vec![], silence, stacks: None };
    restarts.note(diagnose(failure, gang, evidence));
    restarts.count_restart(now);
    assert!(restarts.counted <= policy.rules.retries.max_restarts, "more restarts are counted than allowed");
}
