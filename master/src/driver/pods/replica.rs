//! One replica of a driver's job: what the driver has observed, and which work is in progress.

use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use job::observation::{AgentState, Incarnation, Observation, Pod, Wait};
use job::upkeep::Replacements;
use protocol::agent::{CodeStatus, ExitOutcome, ExitReport, RunState, RunStatus};
use protocol::ids::{Generation, ReplicaId};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::prototype::{self, Launched};
use crate::driver::follower::Follower;
use crate::driver::reports::Subject;

/// How a replica's pod has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodNews {
    /// The same pod is listed, the first pod is listed, or there is still no pod.
    Same,
    /// The pod no longer exists.
    Deleted,
    /// The pod no longer exists, and another pod is listed.
    Replaced,
}

/// A replica, as its driver tracks it.
pub(super) struct Replica {
    /// The number of this replica's earlier pods under this driver.
    pods_before: u32,
    /// The replica's newest pod, which may be deleted by now.
    incarnation: Option<Incarnation>,
    /// Whether an earlier master may have created the replica's first pod.
    may_be_found: bool,
    /// When the replica's pod was requested; `None` after the pod was listed.
    requested_at: Option<Instant>,
    /// Whether the driver gave up the last request for a pod before the pod was listed.
    is_given_up: bool,
    /// When the replica's pod may be replaced.
    pub(super) replacements: Replacements,
    /// Whether the pod of the newest run was deleted. A later pod cannot report about that run.
    has_lost_run: bool,
    /// The driver's observations of the replica.
    pub(super) seen: Observation,
    /// Whether the replica's agent is an agent of the first prototype, which reports neither status nor output.
    pub(super) is_seed_only: bool,
    /// Whether the driver has already asked the replica's run to stop.
    pub(super) is_stopped: bool,
    /// Whether the driver has already asked the replica's pod to shut down.
    pub(super) is_released: bool,
    /// When the deletion of the replica's pod was last requested.
    pub(super) deletion_asked_at: Option<Instant>,
    /// The task that copies the replica's output and then deletes the pod. The task is aborted when the pod is gone, so
    /// that the task never deletes the next pod.
    pub(super) deletion: Option<AbortOnDropHandle<()>>,
    /// The task that polls the agent's status and copies the replica's output.
    pub(super) follower: Option<Follower>,
    /// The offset in the replica's output at which the newest start begins.
    pub(super) output_from: u64,
}

impl Replica {
    /// The address of the replica's agent, if the agent's newest answer is a status or an acknowledgement.
    pub(super) fn agent(&self) -> Option<SocketAddr> {
        let addresses = self.seen.addresses().filter(|_| self.seen.agent.has_answered())?;
        Some(addresses.agent)
    }

    /// The address of the replica's agent and the code that the agent has, if its newest answer is a status.
    pub(super) fn held_code(&self) -> Option<(SocketAddr, CodeStatus)> {
        Some((self.agent()?, self.seen.agent.status()?.code))
    }

    /// The replica with the number of its current or next pod.
    pub(super) fn subject(&self, id: ReplicaId) -> Subject {
        Subject { id, pod: self.pods_before }
    }

    /// The address of the replica's agent, if a new follower must begin to poll it. A failed agent needs no follower,
    /// because it stays failed. An agent of the first prototype needs no follower, because it has no status.
    pub(super) fn to_follow(&self) -> Option<SocketAddr> {
        let is_followable = !self.is_seed_only && !self.has_lost_run && !self.seen.agent.is_lost();
        let address = self.seen.addresses().filter(|_| is_followable)?.agent;
        let is_followed = self.follower.as_ref().is_some_and(|follower| follower.is_at(address));
        (!is_followed).then_some(address)
    }

    /// Applies a report about the replica's agent. Ignores a report about an earlier pod.
    pub(super) fn hear(&mut self, subject: Subject, agent: AgentState, launched: Option<Launched>) {
        if subject.pod != self.pods_before {
            return;
        }
        self.is_seed_only |= agent == AgentState::SeedOnly;
        if matches!(agent, AgentState::Failed(_)) {
            // Perhaps the pod was not created. Allow a new request for the pod.
            self.requested_at = None;
        }
        if matches!(agent, AgentState::Unreachable { is_fenced: true, .. }) {
            // Now the pod can be deleted without a confirmation by its node, so allow a new deletion.
            self.deletion_asked_at = None;
        }
        let agent = prototype::state_of(&mut self.seen, agent, launched, subject.id);
        self.seen.hear(agent);
    }

    /// Stores why the replica's pod does not exist yet, or why the agent is not ready yet.
    pub(super) fn wait(&mut self, subject: Subject, wait: Wait) {
        if subject.pod == self.pods_before {
            self.seen.wait = Some(wait);
        }
    }

    /// Stores the replica's pod as the back end lists it now.
    pub(super) fn see(&mut self, pod: Option<Pod>) -> PodNews {
        let was_listed = self.seen.pod.is_some();
        let (incarnation, state) = pod.map(|Pod { incarnation, state }| (incarnation, state)).unzip();
        self.seen.pod = state;
        let Some(incarnation) = incarnation else {
            return if was_listed { PodNews::Deleted } else { PodNews::Same };
        };
        if !was_listed {
            self.seen.wait = None;
        }
        self.requested_at = None;
        self.seen.is_found |= mem::take(&mut self.may_be_found);
        match self.incarnation.replace(incarnation) {
            known @ Some(_) if known != self.incarnation => PodNews::Replaced,
            Some(_) | None => PodNews::Same,
        }
    }

    /// Ignores all further reports about the deleted pod. If the pod had a run whose end is unknown, or no run, treats the
    /// run as lost. Runs of generations before `horizon` belong to earlier starts.
    pub(super) fn lose_run(&mut self, horizon: Option<Generation>) {
        self.stop_hearing();
        self.has_lost_run = true;
        (self.deletion_asked_at, self.deletion) = (None, None);
        let never_ran = |exit: &ExitReport| exit.stopped && matches!(exit.outcome, ExitOutcome::NotStarted(_));
        let has_ended = |status: &RunStatus| {
            status.exit.as_ref().is_some_and(|exit| !never_ran(exit))
                && (horizon.is_none() || status.generation >= horizon)
        };
        if !self.seen.agent.status().is_some_and(has_ended) {
            self.seen.agent_becomes(AgentState::Failed(self.seen.lost("its pod was deleted")));
        }
    }

    /// Ignores all further reports about a pod that no longer exists.
    fn stop_hearing(&mut self) {
        self.pods_before += 1;
        self.follower = None;
    }

    /// Forgets everything about the deleted pod. If the back end already lists a new pod, keeps the new pod.
    pub(super) fn lose_pod(&mut self) {
        self.stop_hearing();
        let incarnation = self.incarnation.take().filter(|_| self.seen.pod.is_some());
        let seen = Observation { pod: self.seen.pod.take(), ..Observation::NEW };
        let Self { pods_before, replacements, is_given_up, .. } = *self;
        *self = Self { pods_before, replacements, is_given_up, incarnation, seen, ..Self::new() };
    }

    /// Whether the replica's pod is a member of this start.
    pub(super) fn is_member(&self, start: Generation) -> bool {
        self.seen.enrolment().is_some_and(|enrolled| enrolled.generation == start)
    }

    /// Whether the replica's pod may be a member of a start of generation `horizon` or later.
    pub(super) fn may_be_member(&self, horizon: Option<Generation>) -> bool {
        self.seen.enrolment().is_some_and(|enrolled| horizon.is_none_or(|horizon| enrolled.generation >= horizon))
    }

    /// Notes that the replica's pod is requested. `now` is the time since the driver began. Forgets why the last
    /// request failed.
    pub(super) fn request(&mut self, now: Duration) {
        // Reports about the last pod must not count for the new pod.
        if self.seen.agent != AgentState::Silent {
            self.lose_pod();
        }
        self.requested_at = Some(Instant::now());
        // If the last request was given up, this request repeats it and does not count as another replacement.
        if !mem::take(&mut self.is_given_up) {
            self.replacements.note(now);
        }
    }

    pub(super) fn requested_at(&self) -> Option<Instant> {
        self.requested_at
    }

    pub(super) fn give_up_request(&mut self) {
        self.is_given_up |= self.requested_at.take().is_some();
    }

    /// Whether the deletion of the replica's pod was requested less than `period` ago.
    pub(super) fn was_asked_to_go_within(&self, period: Duration) -> bool {
        self.deletion_asked_at.is_some_and(|at| at.elapsed() < period)
    }

    /// Prepares for the next start. A pod that still exists may serve the next start, also if somebody else has created
    /// it in the place of a lost pod.
    pub(super) fn begin_again(&mut self) {
        if self.seen.pod.is_none() || self.has_lost_run {
            return self.lose_pod();
        }
        self.is_stopped = false;
        if self.deletion.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            self.deletion_asked_at = None;
        }
    }

    /// Prepares for a later turn of the gang. Its pods are not lost, so new pods do not count as replacements.
    pub(super) fn queue(&mut self) {
        if self.seen.pod.is_none() {
            self.lose_pod();
        }
        self.replacements = Replacements::default();
    }

    /// Makes the replica's follower poll the agent for this start.
    pub(super) fn watch_run(&self, start: Option<Generation>) {
        self.follower.iter().for_each(|follower| follower.watch_run(start));
    }

    /// Drops details that the finished job's record contains. Keeps whether the agent was configured or started.
    pub(super) fn finish(&mut self) {
        let status = self.seen.agent.status().cloned();
        self.seen.agent =
            match (status.as_ref().map(|status| status.state), status.and_then(|status| status.generation)) {
                (Some(RunState::Running | RunState::Stopping | RunState::Exited), Some(start)) => {
                    AgentState::Started(start)
                }
                (Some(RunState::Configured), Some(start)) => AgentState::Configured(start),
                (Some(_), _) => AgentState::Silent,
                (None, _) => return,
            };
    }

    /// A replica when its driver begins. From the second epoch on, an earlier master may have created the replica's
    /// pod.
    pub(super) fn first(epoch: u32) -> Self {
        Self { may_be_found: epoch > 1, ..Self::new() }
    }

    pub(super) fn new() -> Self {
        Self {
            pods_before: 0,
            incarnation: None,
            may_be_found: false,
            requested_at: None,
            is_given_up: false,
            replacements: Replacements::default(),
            has_lost_run: false,
            seen: Observation::NEW,
            is_seed_only: false,
            is_stopped: false,
            is_released: false,
            deletion_asked_at: None,
            deletion: None,
            follower: None,
            output_from: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use job::observation::{Addresses, PodState};
    use protocol::ids::UnixMillis;

    #[test]
    fn late_reports_about_an_earlier_pod_are_ignored() {
        let id = "worker-1".parse().unwrap();
        let mut replica = Replica::new();
        let gone = replica.subject(id);
        replica.hear(gone, AgentState::SeedOnly, None);
        assert_eq!(replica.seen.agent, AgentState::SeedOnly);
        replica.lose_pod();
        replica.hear(gone, AgentState::Configured("1.1".parse().unwrap()), None);
        assert_eq!((replica.seen.agent.clone(), replica.is_seed_only), (AgentState::Silent, false));
        replica.hear(replica.subject(id), AgentState::SeedOnly, None);
        assert_eq!(replica.seen.agent, AgentState::SeedOnly);
    }

    #[test]
    fn the_end_of_a_run_that_never_began_is_lost_with_its_pod() {
        let exit = |outcome| ExitReport { stopped: true, ..ExitReport::new(outcome, UnixMillis(1)) };
        let after = |outcome| {
            let mut replica = Replica::new();
            let generation = Some("1.1".parse().unwrap());
            let exit = Some(exit(outcome));
            let status = RunStatus { state: RunState::Exited, generation, exit, ..RunStatus::idle("boot") };
            replica.seen.agent = AgentState::Status(Box::new(status));
            replica.lose_run(generation);
            replica.seen.agent.is_lost()
        };
        assert!(
            after(ExitOutcome::NotStarted("it was stopped first".to_owned())),
            "a new pod would count as configured"
        );
        assert!(!after(ExitOutcome::Signal(9)), "the end of the run is forgotten");
    }

    #[test]
    fn a_listed_pod_with_another_uid_replaces_the_known_pod() {
        let listed = |uid: &str| {
            Some(Pod { incarnation: uid.to_owned().into(), state: PodState::Pending { has_node: false, wait: None } })
        };
        let mut replica = Replica::new();
        let news = ["a", "a", "b"].map(|uid| replica.see(listed(uid)));
        assert_eq!(news, [PodNews::Same, PodNews::Same, PodNews::Replaced]);
        let news = [None, None, listed("c"), listed("c")].map(|pod| replica.see(pod));
        assert_eq!(news, [PodNews::Deleted, PodNews::Same, PodNews::Replaced, PodNews::Same]);
    }

    #[test]
    fn a_reason_to_wait_is_shown_until_the_pod_is_listed_or_its_agent_answers() {
        let id = "worker-1".parse().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let state = PodState::Running(Addresses { agent: address, tensorflow: address });
        let pod = || Some(Pod { incarnation: "a".to_owned().into(), state: state.clone() });
        let mut replica = Replica::new();
        let [quota, code] =
            ["a quota has no room", "its agent receives the job's code"].map(|text| Wait::Other(text.to_owned()));
        replica.wait(replica.subject(id), quota.clone());
        assert_eq!(replica.seen.waits_for(), Some(&quota));
        replica.see(pod());
        assert_eq!(replica.seen.waits_for(), None);
        replica.wait(replica.subject(id), code.clone());
        replica.see(pod());
        assert_eq!(replica.seen.waits_for(), Some(&code));
        replica.hear(replica.subject(id), AgentState::SeedOnly, None);
        assert_eq!(replica.seen.waits_for(), None);
    }
}
