//! What a master knows of one replica over time: the replica's pods, one after another, and which reports still count.

use std::mem;
use std::time::Duration;

use protocol::agent::{ExitOutcome, ExitReport, RunState, RunStatus};
use protocol::failure::Loss;
use protocol::ids::{Generation, ReplicaId};

use super::gang::Place;
use super::observation::{AgentState, GONE, Incarnation, Observation, Pod, PodDeletion, Wait};
use super::phase::JobPhase;
use super::replica::ReplicaPhase;
use super::upkeep::Replacements;

/// A replica, as a master tracks it. All times are durations since the job's driver began.
#[derive(Debug, Clone, Default)]
pub struct Tracked {
    /// The observations of the replica.
    pub seen: Observation,
    /// Whether the master has already asked the replica's run to stop.
    pub is_stopped: bool,
    /// The number of this replica's earlier pods under this master.
    pods_before: u32,
    /// The replica's newest pod, which may be deleted by now.
    incarnation: Option<Incarnation>,
    /// Whether an earlier master may have created the replica's first pod.
    may_be_found: bool,
    /// When the replica's pod was requested; `None` after the pod was listed.
    requested_at: Option<Duration>,
    /// Whether the master gave up the last request for a pod before the pod was listed.
    is_given_up: bool,
    /// When the replica's pod may be replaced.
    replacements: Replacements,
    /// How often a pod of the replica was deleted because its run had failed.
    failed_alone: u32,
    /// Whether the pod of the newest run was deleted. A later pod cannot report about that run.
    has_lost_run: bool,
    /// When the deletion of the replica's pod was last requested.
    deletion_asked_at: Option<Duration>,
}

/// What a replica has lost because its pod no longer exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodLoss {
    /// Nothing, or a run whose end will be observed in another way.
    None,
    /// Its run. The knowledge about the run is kept, because the replica may be a member of the present start.
    Run,
    /// Its pod. All knowledge about the pod is discarded.
    Pod,
}

impl Tracked {
    /// A replica when its master begins. `may_be_found` is whether an earlier master may have created the replica's pod.
    pub fn new(may_be_found: bool) -> Self {
        Self { may_be_found, ..Self::default() }
    }

    /// The number of the replica's current or next pod, counted from 0. Reports about earlier pods do not count.
    pub fn pod_number(&self) -> u32 {
        self.pods_before
    }

    /// The replica in a gang. Runs of generations before `horizon` belong to earlier starts.
    pub fn place(&self, id: ReplicaId, horizon: Option<Generation>) -> Place<'_> {
        let (create_at, failed_alone) = (self.replacements.next_at(), self.failed_alone);
        Place { create_at, failed_alone, ..Place::of(id, &self.seen, horizon) }
    }

    /// Stores the replica's pod as the back end lists it now. `phase` is the current phase of the job.
    pub fn see(&mut self, pod: Option<Pod>, phase: &JobPhase) -> PodLoss {
        let was_listed = self.seen.pod.is_some();
        let (incarnation, state) = pod.map(|Pod { incarnation, state }| (incarnation, state)).unzip();
        self.seen.pod = state;
        let is_replaced = incarnation.is_some_and(|incarnation| {
            if !was_listed {
                self.seen.wait = None;
            }
            self.requested_at = None;
            self.seen.is_found |= mem::take(&mut self.may_be_found);
            self.incarnation.replace(incarnation).is_some_and(|known| Some(known) != self.incarnation)
        });
        let is_deleted = was_listed && self.seen.pod.is_none();
        // In a running gang, only an evaluator that starts again alone has no run yet.
        let is_coming_up =
            matches!(phase, JobPhase::Pending { .. } | JobPhase::Starting { .. }) || self.is_before_run();
        if !is_replaced && !is_deleted {
            return PodLoss::None;
        }
        // No start depends on the pod of a replica that is not a member.
        if !self.may_be_member(phase.horizon()) {
            self.lose_pod();
            return PodLoss::Pod;
        }
        if is_replaced || is_coming_up {
            self.lose_run(phase.horizon());
            return PodLoss::Run;
        }
        PodLoss::None
    }

    /// Whether the replica's agent has answered, and was not asked to run exec.py.
    fn is_before_run(&self) -> bool {
        match &self.seen.agent {
            AgentState::Configured(_) => true,
            AgentState::Status(status) => matches!(status.state, RunState::Idle | RunState::Configured),
            AgentState::Silent
            | AgentState::SeedOnly
            | AgentState::Started(_)
            | AgentState::Unreachable { .. }
            | AgentState::Failed(_) => false,
        }
    }

    /// Applies a report about the agent in the pod with this number.
    pub fn hear(&mut self, pod: u32, agent: AgentState) {
        if pod != self.pods_before {
            return;
        }
        if matches!(agent, AgentState::Failed(_)) {
            // Perhaps the pod was not created. Allow a new request for the pod.
            self.requested_at = None;
        }
        if matches!(agent, AgentState::Unreachable { is_fenced: true, .. }) {
            // Now the pod can be deleted without a confirmation by its node, so allow a new deletion.
            self.deletion_asked_at = None;
        }
        self.seen.hear(agent);
    }

    /// Stores why the pod with this number does not exist yet, or why its agent is not ready yet.
    pub fn wait(&mut self, pod: u32, wait: Wait) {
        if pod == self.pods_before {
            self.seen.wait = Some(wait);
        }
    }

    /// Whether a later report about the pod's run can still arrive.
    pub fn can_report(&self) -> bool {
        !self.has_lost_run && !self.seen.agent.is_lost()
    }

    /// Ignores all further reports about the deleted pod. If the end of the pod's run is unknown, or exec.py was never
    /// started, treats the run as lost. Runs of generations before `horizon` belong to earlier starts.
    fn lose_run(&mut self, horizon: Option<Generation>) {
        self.pods_before += 1;
        self.has_lost_run = true;
        self.deletion_asked_at = None;
        let never_ran = |exit: &ExitReport| exit.stopped && matches!(exit.outcome, ExitOutcome::NotStarted(_));
        let has_ended = |status: &RunStatus| {
            status.exit.as_ref().is_some_and(|exit| !never_ran(exit))
                && (horizon.is_none() || status.generation >= horizon)
        };
        if !self.seen.agent.status().is_some_and(has_ended) {
            self.seen.agent_becomes(AgentState::Failed(self.seen.lost(GONE)));
        }
    }

    /// Forgets everything about the deleted pod. If the back end already lists a new pod, keeps the new pod.
    fn lose_pod(&mut self) {
        let incarnation = self.incarnation.take().filter(|_| self.seen.pod.is_some());
        let seen = Observation { pod: self.seen.pod.take(), ..Observation::NEW };
        let Self { pods_before, replacements, failed_alone, is_given_up, .. } = *self;
        let pods_before = pods_before + 1;
        *self = Self { pods_before, incarnation, seen, replacements, failed_alone, is_given_up, ..Self::default() };
    }

    /// Whether the replica's pod is a member of this start.
    pub fn is_member(&self, start: Generation) -> bool {
        self.seen.enrolment().is_some_and(|enrolled| enrolled.generation == start)
    }

    fn may_be_member(&self, horizon: Option<Generation>) -> bool {
        self.seen.enrolment().is_some_and(|enrolled| horizon.is_none_or(|horizon| enrolled.generation >= horizon))
    }

    /// Whether to request the replica's pod now. False while the last request may still take effect: for `soon` after
    /// the request, and while the request is in progress. If the pod is not listed by then, somebody may have deleted
    /// it before the watch could list it.
    pub fn is_to_be_requested(&self, now: Duration, soon: Duration, is_in_progress: bool) -> bool {
        self.requested_at.is_none_or(|at| now >= at + soon && !is_in_progress)
    }

    /// Notes that the replica's pod is requested. Forgets the replica's last pod, because reports about it must not count
    /// for the new pod.
    pub fn request(&mut self, now: Duration) -> PodLoss {
        let is_known = self.seen.agent != AgentState::Silent;
        if is_known {
            self.lose_pod();
        }
        self.requested_at = Some(now);
        // If the last request was given up, this request repeats it and does not count as another replacement.
        if !mem::take(&mut self.is_given_up) {
            self.replacements.note(now);
        }
        if is_known { PodLoss::Pod } else { PodLoss::None }
    }

    /// Whether the replica's newest run has failed, and neither a master nor the cluster has ended it.
    fn has_failed(&self) -> bool {
        let phase = ReplicaPhase::of(&self.seen, None);
        phase.exit().is_some_and(|exit| !exit.is_success() && !exit.stopped)
            || phase.lost().is_some_and(|lost| lost.loss != Loss::Disrupted)
    }

    /// Whether the replica's pod is requested and not listed yet.
    pub fn is_requested(&self) -> bool {
        self.requested_at.is_some()
    }

    /// Whether a requested pod may still appear. False if there is a reason why the pod does not exist, such as a quota
    /// without room.
    pub fn may_appear(&self) -> bool {
        self.requested_at.is_some() && self.seen.wait.is_none()
    }

    /// Notes that the master has cancelled its request for a pod. The pod may still appear.
    pub fn give_up_request(&mut self) {
        self.is_given_up |= self.requested_at.take().is_some();
    }

    /// Notes that the replica's pod is to be deleted now. False if the deletion was already requested within `soon`,
    /// because the back end's watch needs some time to report the deletion.
    pub fn ask_to_go(&mut self, now: Duration, soon: Duration) -> bool {
        let is_due = self.deletion_asked_at.is_none_or(|at| now >= at + soon);
        if is_due {
            self.failed_alone += u32::from(self.seen.deletion == PodDeletion::NotAsked && self.has_failed());
            (self.deletion_asked_at, self.seen.deletion) = (Some(now), PodDeletion::Asked);
        }
        is_due
    }

    /// Whether the deletion of the replica's pod was requested.
    pub fn was_asked_to_go(&self) -> bool {
        self.deletion_asked_at.is_some()
    }

    /// Prepares for the next start. A pod that still exists may serve the next start, even if somebody else has created
    /// it in the place of a lost pod. `may_ask` is whether the deletion of the pod may be requested again at once.
    pub fn begin_again(&mut self, may_ask: bool) -> PodLoss {
        if self.seen.pod.is_none() || self.has_lost_run {
            self.lose_pod();
            return PodLoss::Pod;
        }
        self.is_stopped = false;
        if may_ask {
            self.deletion_asked_at = None;
        }
        PodLoss::None
    }

    /// Prepares for a later turn of the gang. The gang's pods are given back, not lost, so new pods do not count as
    /// replacements.
    pub fn queue(&mut self) -> PodLoss {
        self.forget_replacements();
        if self.seen.pod.is_some() {
            return PodLoss::None;
        }
        self.lose_pod();
        PodLoss::Pod
    }

    /// The pods so far do not count as replacements.
    pub fn forget_replacements(&mut self) {
        self.replacements = Replacements::default();
    }
}
