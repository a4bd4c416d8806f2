//! All replicas of a job together: whether the gang is ready, and which failure came first.

use std::time::Duration;

use protocol::agent::{ExitOutcome, LEFT, RunState};
use protocol::failure::{Failure, Loss, TooLargeBatch};
use protocol::ids::{Generation, ReplicaId, Role, UnixMillis};
use protocol::lease::Standing;
use protocol::progress::{LostSteps, Progress};

use super::observation::{LostRun, Observation, PodDeletion, Presence};
use super::replica::ReplicaPhase;
use super::wait::Wait;

/// One replica: its phase, and what the master has observed of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place<'a> {
    /// The replica's role and index.
    pub id: ReplicaId,
    /// What the master has observed.
    pub seen: &'a Observation,
    /// The replica's phase.
    pub phase: ReplicaPhase,
    /// When the replica's next pod may be created, as the time since the driver began.
    pub create_at: Duration,
    /// How often this master has deleted a pod of the replica because its run had failed.
    pub failed_alone: u32,
}

/// How a script uses the helper `muster.py` in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HelperUse {
    /// The script has reported nothing.
    #[default]
    None,
    /// The script has reported that it uses the helper.
    Begun,
    /// The script has also reported a step.
    Stepped,
}

impl HelperUse {
    fn of(reported: Option<&Progress>) -> Self {
        match reported {
            None => Self::None,
            Some(progress) if progress.has_stepped() => Self::Stepped,
            Some(_) => Self::Begun,
        }
    }
}

impl<'a> Place<'a> {
    /// A replica that was observed like this. Runs of generations before `horizon` belong to earlier starts.
    pub fn of(id: ReplicaId, seen: &'a Observation, horizon: Option<Generation>) -> Self {
        let phase = ReplicaPhase::of(seen, horizon);
        Self { id, seen, phase, create_at: Duration::ZERO, failed_alone: 0 }
    }

    /// What the script of the replica's newest run has reported with the helper.
    fn progress(&self) -> Option<&Progress> {
        self.seen.agent.status()?.helper.as_ref()
    }

    /// How the script of the replica's newest run uses the helper.
    pub fn helper(&self) -> HelperUse {
        HelperUse::of(self.progress())
    }

    /// The last step that the script of the replica's newest run has reported, and the version of the batch sizes.
    pub fn reported(&self) -> Option<(u64, u64)> {
        self.progress().and_then(|progress| Some((progress.step?, progress.split)))
    }

    /// The first and the last step that the script of the replica's newest run has reported but not saved.
    pub fn unsaved(&self) -> Option<(u64, u64)> {
        self.progress().and_then(Progress::unsaved)
    }

    /// Whether the script of the replica's newest run has reported steps, and has saved all of them.
    pub fn has_saved(&self) -> bool {
        self.helper() == HelperUse::Stepped && self.unsaved().is_none()
    }

    /// The start of the replica's run, if the run has ended for lack of memory.
    pub fn out_of_memory(&self) -> Option<Generation> {
        let ReplicaPhase::Exited(generation, exit) = &self.phase else { return None };
        exit.lacks_memory().then_some(*generation)
    }

    /// Whether the replica's run has been told to stop, and has not ended.
    pub fn is_stopping(&self) -> bool {
        self.seen.agent.status().is_some_and(|status| status.state == RunState::Stopping)
    }

    /// Whether the replica's pod is alive and exec.py was not started in it. Such a pod does not end by itself.
    pub fn is_idle(&self) -> bool {
        self.seen.presence() == Presence::Live && !self.phase.was_launched()
    }

    /// Whether the replica's pod is already being evicted or deleted. This master need not delete such a pod. False for
    /// the pod of a fenced agent: its node may be dead, and then the pod would stay.
    pub fn is_on_its_way(&self) -> bool {
        self.seen.is_leaving() && self.seen.agent.standing() < Standing::Fenced
    }

    /// Whether the replica's pod is alive and has not reported the end of the run.
    pub fn is_unended(&self) -> bool {
        self.seen.presence() == Presence::Live && !self.phase.is_dead()
    }

    /// Whether the replica's current or next pod can serve another start. False for a pod that is being removed, or
    /// whose deletion this master has requested, even if the pod still looks healthy.
    pub fn is_fit(&self) -> bool {
        match self.seen.presence() {
            Presence::Absent => true,
            Presence::Live => {
                self.seen.deletion == PodDeletion::NotAsked && !self.phase.is_lost() && !self.seen.is_leaving()
            }
            Presence::Occupied | Presence::Ended => false,
        }
    }

    /// Whether the loss of this replica would happen again in a new pod.
    pub fn is_hopeless(&self) -> bool {
        self.phase.lost().is_some_and(|lost| lost.loss == Loss::Hopeless)
    }

    /// Whether the replica's pod is being evicted, or deleted by somebody else, and exec.py has not ended by itself.
    pub fn may_still_save(&self) -> bool {
        let is_disrupted = self.phase.lost().is_some_and(|lost| lost.loss == Loss::Disrupted);
        is_disrupted && self.seen.presence() == Presence::Live && self.seen.agent.standing() == Standing::Held
    }

    /// Whether the replica's agent has answered, and has a run or can still start one.
    pub fn has_joined(&self) -> bool {
        self.phase.has_joined() && !self.is_spent()
    }

    /// Whether a stop request came before the replica's exec.py was started, and the pod has ended since.
    pub fn is_spent(&self) -> bool {
        self.phase.was_called_back() && matches!(self.seen.presence(), Presence::Occupied | Presence::Ended)
    }

    /// Whether the replica's agent has an address but has not answered. The agent may already have a run.
    pub fn is_silent(&self) -> bool {
        self.phase == ReplicaPhase::Scheduled
    }

    /// Whether an earlier master may have started exec.py in the replica's pod, although the agent has not answered this
    /// master.
    pub fn may_have_unknown_run(&self) -> bool {
        self.is_silent() && self.seen.may_run()
    }

    /// The failure of this replica, if it has failed.
    pub fn failure(&self) -> Option<Failure> {
        let replica = self.id;
        if let Some(LostRun { reason, loss }) = self.phase.lost() {
            return Some(Failure::ReplicaLost { replica, reason: reason.clone(), loss: *loss });
        }
        self.phase.failed().map(|exit| Failure::ReplicaExited { replica, exit: exit.clone() })
    }
}

/// The replicas of a job, in the plan's order. The replicas with a seat in the current start are the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang<'a> {
    places: Vec<Place<'a>>,
    /// See [`Gang::note_too_large`].
    too_large: Vec<TooLargeBatch>,
    /// The current start. Without a start, no replica is a member.
    start: Option<Generation>,
}

impl<'a> Gang<'a> {
    /// The gang of these replicas. Its members are the replicas that are enrolled in the newest known start. A start
    /// before `horizon` has ended, and has no members.
    pub fn new(places: Vec<Place<'a>>, horizon: Option<Generation>) -> Self {
        let known = places.iter().filter_map(|place| Some(place.seen.enrolment()?.generation));
        let start = known.max().filter(|start| horizon.is_none_or(|horizon| *start >= horizon));
        Self { places, start, too_large: vec![] }
    }

    /// Every replica, whether or not it is a member.
    pub fn places(&self) -> &[Place<'a>] {
        &self.places
    }

    /// The members.
    pub fn members(&self) -> impl Iterator<Item = &Place<'a>> {
        self.places.iter().filter(|place| self.has(place))
    }

    /// Whether this replica is a member.
    pub fn has(&self, place: &Place<'_>) -> bool {
        self.start.is_some() && place.seen.enrolment().map(|enrolled| enrolled.generation) == self.start
    }

    /// Whether every member of the current start is known. After a takeover, some agents have perhaps not answered yet. An
    /// evaluator may be missing, because it starts again alone.
    pub fn is_whole(&self) -> bool {
        let away = self.places.iter().filter(|place| place.id.role == Role::Evaluator && !self.has(place)).count();
        self.size().is_some_and(|size| self.members().count() + away >= size)
    }

    /// The number of members of the current start, as the known members report it.
    fn size(&self) -> Option<usize> {
        self.members().filter_map(|member| Some(member.seen.enrolment()?.membership.of as usize)).max()
    }

    /// The role and index of a member in the current start.
    pub fn seat(&self, member: &Place<'_>) -> ReplicaId {
        let index = member.seen.enrolment().map_or(member.id.index, |enrolled| enrolled.membership.seat);
        ReplicaId { role: member.id.role, index }
    }

    /// Whether `test` holds for every member's phase.
    pub fn all(&self, test: impl Fn(&ReplicaPhase) -> bool) -> bool {
        self.members().all(|member| test(&member.phase))
    }

    /// Whether `test` holds for at least one member.
    pub fn any(&self, test: impl Fn(&Place<'a>) -> bool) -> bool {
        self.members().any(test)
    }

    /// Whether `test` holds for at least one replica.
    pub fn any_place(&self, test: impl Fn(&Place<'a>) -> bool) -> bool {
        self.places.iter().any(test)
    }

    /// The first failure. Call this function only before this master stops a run. A loss that the cluster caused comes
    /// first, then the earliest exit by the agents' clocks, then any other lost pod. A run that somebody else stopped
    /// comes last. That run is a failure too, because the gang cannot continue without it. Members for which `counts` is
    /// false are left out.
    pub fn first_failure_of(&self, counts: impl Fn(&Place<'a>) -> bool) -> Option<Failure> {
        let failures = self.members().filter(|member| counts(member)).filter_map(Place::failure);
        failures.min_by_key(|failure| (was_stopped(failure), time_of(failure)))
    }

    /// The cause of a failed start. `known` was found first, but an agent may have reported an earlier exit since.
    /// Stopped runs and pods that this master deleted are not causes. A script that exited with [`LEFT`] is the cause
    /// only if nothing else failed, because a script also asks for a restart when another member is lost. An evaluator
    /// is the cause only if its own failure is `known`, because the others do not need it.
    pub fn cause(&self, known: Failure) -> Failure {
        if matches!(known, Failure::DeadlineExceeded { .. }) {
            return known;
        }
        let order = |failure: &Failure| (has_left(failure), time_of(failure));
        let earlier = |one: Failure, other: Failure| if order(&other) < order(&one) { other } else { one };
        let is_of_this_master =
            |member: &Place<'_>| member.seen.deletion == PodDeletion::Asked && member.phase.is_lost();
        let failed = known.replica();
        let is_needed = |member: &Place<'_>| member.id.role != Role::Evaluator || failed == Some(member.id);
        let may_be_cause = |member: &&Place<'_>| !is_of_this_master(member) && is_needed(member);
        let others = self.members().filter(may_be_cause);
        let failures = others.filter_map(Place::failure).filter(|failure| !was_stopped(failure));
        let missing = has_left(&known).then(|| self.missing()).flatten();
        failures.chain(missing).fold(known, earlier)
    }

    /// The loss of a replica that has no seat in the current start, although this start has a seat for each replica.
    /// `None` before exec.py of a member was started. Usually the cluster removed the replica's pod while no master
    /// ran.
    pub fn missing(&self) -> Option<Failure> {
        let start = self.newest_launch().filter(|_| self.size() == Some(self.places.len()))?;
        let missing = self.places.iter().filter(|place| !self.has(place) && place.id.role != Role::Evaluator);
        let loss = |place: &Place<'_>| {
            let reason = format!("its agent takes no part in start {start}, in which other replicas run");
            let known = place.failure().filter(|_| place.phase.is_lost());
            known.unwrap_or(Failure::ReplicaLost { replica: place.id, reason, loss: Loss::Disrupted })
        };
        missing.map(loss).min_by_key(time_of)
    }

    /// The steps that this start has not saved yet. The replica of rank 0 saves the state of the job. After this
    /// replica has succeeded, nothing is lost. While its pod is being evicted or deleted, its script may still run and
    /// save: see [`Place::has_saved`].
    pub fn unsaved_steps(&self) -> Option<LostSteps> {
        let training = self.members().filter(|member| member.id.role.trains());
        let saver = training.min_by_key(|member| self.seat(member))?;
        let (first, last) = saver.unsaved().filter(|_| !saver.phase.has_succeeded())?;
        Some(LostSteps { replica: saver.id, first, last })
    }

    /// The steps that are lost with this start. `None` if they are unknown, because the script may still run.
    pub fn lost_steps(&self) -> Option<LostSteps> {
        let may_run =
            |lost: &LostSteps| self.places.iter().any(|place| place.id == lost.replica && place.seen.may_run());
        self.unsaved_steps().filter(|lost| !may_run(lost))
    }

    /// How the script of the replica that failed uses the helper.
    pub fn helper_of(&self, failure: &Failure) -> HelperUse {
        self.failed(failure).map(Place::helper).unwrap_or_default()
    }

    /// How often a user had pushed new code when the failed script was started. The number comes from the agent of this
    /// script: after a takeover, other agents may already have the environment of the next start.
    pub fn pushes_of(&self, failure: &Failure) -> Option<u32> {
        Some(self.failed(failure)?.seen.enrolment()?.membership.pushes)
    }

    /// The member that failed first.
    pub fn failed(&self, failure: &Failure) -> Option<&Place<'a>> {
        let id = failure.replica()?;
        self.members().find(|member| member.id == id)
    }

    /// The batches that were too large for the memory of members.
    pub fn too_large(&self) -> &[TooLargeBatch] {
        &self.too_large
    }

    /// Notes the batches that were too large for the memory of members.
    pub fn note_too_large(&mut self, batches: Vec<TooLargeBatch>) {
        self.too_large = batches;
    }

    /// How often a user had pushed new code when this start began, if a member has reported it.
    pub fn pushes_in(&self, generation: Generation) -> Option<u32> {
        let enrolled = self.members().filter_map(|member| member.seen.enrolment());
        enrolled.filter(|one| one.generation == generation).map(|one| one.membership.pushes).min()
    }

    /// The newest generation in which an exec.py was started.
    pub fn newest_launch(&self) -> Option<Generation> {
        let launched = self.members().filter(|member| member.phase.was_launched() && !member.phase.was_called_back());
        launched.filter_map(|member| member.phase.generation()).max()
    }

    /// The newest generation for which any member was configured.
    pub fn newest_generation(&self) -> Option<Generation> {
        self.members().filter_map(|member| member.phase.generation()).max()
    }

    /// The failure of a gang that exceeded this start timeout. The failure names the replicas for which `has_come`
    /// is false.
    pub fn start_timeout(&self, timeout: Duration, has_come: impl Fn(&Place<'a>) -> bool) -> Failure {
        let missing = || self.places.iter().filter(|member| !has_come(member));
        let waits = || missing().filter_map(|member| member.seen.waits_for());
        Failure::StartTimeout {
            missing: missing().map(|member| member.id).collect(),
            after_seconds: timeout.as_secs(),
            reason: waits().find(|wait| wait.is_obstacle()).or_else(|| waits().next()).map(Wait::to_string),
        }
    }
}

/// Whether the failure is the loss of a pod that the cluster removed.
pub fn is_disruption(failure: &Failure) -> bool {
    matches!(failure, Failure::ReplicaLost { loss: Loss::Disrupted, .. })
}

/// The time of a failure, for sorting. A loss that the cluster caused, such as an eviction, sorts first, because other
/// members may fail before this master observes the loss. A failure without a time sorts last.
fn time_of(failure: &Failure) -> UnixMillis {
    match failure {
        Failure::ReplicaExited { exit, .. } => exit.ended_at,
        Failure::ReplicaLost { loss: Loss::Disrupted, .. } => UnixMillis(0),
        Failure::ReplicaLost { loss: Loss::Broken | Loss::Hopeless, .. }
        | Failure::StartTimeout { .. }
        | Failure::DeadlineExceeded { .. } => UnixMillis(u64::MAX),
    }
}

/// Whether a script asked for a restart.
pub fn has_left(failure: &Failure) -> bool {
    matches!(failure, Failure::ReplicaExited { exit, .. } if exit.outcome == ExitOutcome::Code(LEFT))
}

/// Whether somebody stopped the run that failed.
pub fn was_stopped(failure: &Failure) -> bool {
    matches!(failure, Failure::ReplicaExited { exit, .. } if exit.stopped)
}
