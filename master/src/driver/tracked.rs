//! One replica of a driver's job: what the driver knows about it, and which work is in progress.

use std::net::SocketAddr;

use protocol::agent::RunState;
use protocol::ids::{Generation, ReplicaId};
use tokio::time::Instant;

use super::follower::Follower;
use super::subject::Subject;
use crate::job::observation::{AgentState, Incarnation, Observation, Pod, PodState};

/// How a replica's pod has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodNews {
    /// It is the same pod, the first one, or there is still none.
    Same,
    /// The pod no longer exists.
    Deleted,
    /// The pod no longer exists, and another one is listed.
    Replaced,
}

/// A replica, as its driver tracks it.
pub(super) struct Replica {
    /// How many earlier pods of this replica the driver has seen end.
    pods_before: u32,
    /// Its newest pod, which may be deleted by now.
    incarnation: Option<Incarnation>,
    /// Whether the pod of its newest run was deleted. A later pod has nothing to say about that run.
    has_lost_run: bool,
    /// What the driver knows about it.
    pub(super) seen: Observation,
    /// Whether its agent is the first prototype's, which offers neither status nor output.
    pub(super) is_seed_only: bool,
    /// Whether the driver has already asked its run to stop.
    pub(super) is_stopped: bool,
    /// Whether the driver has already asked its pod to shut down.
    pub(super) is_released: bool,
    /// When the deletion of its pod was last requested.
    pub(super) deletion_asked_at: Option<Instant>,
    /// The task that polls its agent's status and copies its output.
    pub(super) follower: Option<Follower>,
    /// The offset in the kept output at which its newest start begins.
    pub(super) output_from: u64,
}

impl Replica {
    /// If the pod has ended and its agent never answered, assumes that exec.py ran in the start `launched`. The pod's
    /// exit status then counts for that start.
    pub(super) fn count_as_launched(&mut self, launched: Option<Generation>) {
        let has_ended = matches!(self.seen.pod, Some(PodState::Terminated { exit: Some(_), .. }));
        if let (AgentState::Silent, true, Some(generation)) = (&self.seen.agent, has_ended, launched) {
            self.seen.agent = AgentState::Started(generation);
        }
    }

    /// The address of its agent, if the agent's newest answer is a status or an acknowledgement.
    pub(super) fn agent(&self) -> Option<SocketAddr> {
        let addresses = self.seen.addresses().filter(|_| self.seen.agent.has_answered())?;
        Some(addresses.agent)
    }

    /// The replica with the number of its current or next pod.
    pub(super) fn subject(&self, id: ReplicaId) -> Subject {
        Subject { id, pod: self.pods_before }
    }

    /// The address of its agent, if a follower must begin there. A failed agent stays failed, and an agent of the first
    /// prototype has no status to follow.
    pub(super) fn to_follow(&self) -> Option<SocketAddr> {
        let is_followable =
            !self.is_seed_only && !self.has_lost_run && !matches!(self.seen.agent, AgentState::Failed(_));
        let address = self.seen.addresses().filter(|_| is_followable)?.agent;
        let is_followed = self.follower.as_ref().is_some_and(|follower| follower.is_at(address));
        (!is_followed).then_some(address)
    }

    /// Applies a report about its agent, unless the report is about an earlier pod.
    pub(super) fn hear(&mut self, subject: Subject, agent: AgentState, launched: Option<Generation>) {
        if subject.pod != self.pods_before {
            return;
        }
        self.is_seed_only |= agent == AgentState::SeedOnly;
        // The record says that this agent was launched already; do not launch it again.
        let before = launched.filter(|_| agent == AgentState::SeedOnly).map(AgentState::Started);
        self.seen.hear(before.unwrap_or(agent));
    }

    /// Stores why its pod does not exist yet.
    pub(super) fn wait(&mut self, subject: Subject, reason: String) {
        if subject.pod == self.pods_before {
            self.seen.denied = Some(reason);
        }
    }

    /// Stores its pod as the back end lists it now.
    pub(super) fn see(&mut self, pod: Option<Pod>) -> PodNews {
        let was_listed = self.seen.pod.is_some();
        let (incarnation, state) = pod.map(|Pod { incarnation, state }| (incarnation, state)).unzip();
        self.seen.pod = state;
        let Some(incarnation) = incarnation else {
            return if was_listed { PodNews::Deleted } else { PodNews::Same };
        };
        self.seen.denied = None;
        match self.incarnation.replace(incarnation) {
            known @ Some(_) if known != self.incarnation => PodNews::Replaced,
            Some(_) | None => PodNews::Same,
        }
    }

    /// Counts its run as lost with its pod, unless the run's end is known. Ignores all further reports about that pod.
    pub(super) fn lose_run(&mut self) {
        self.stop_hearing();
        self.has_lost_run = true;
        if self.seen.agent.status().is_none_or(|status| status.exit.is_none()) {
            self.seen.agent = AgentState::Failed(self.seen.lost("its pod was deleted"));
        }
    }

    /// Ignores all further reports about its pod, because the pod no longer exists.
    fn stop_hearing(&mut self) {
        self.pods_before += 1;
        self.follower = None;
    }

    /// Forgets everything about its deleted pod. Keeps the new pod, if the back end already lists one.
    pub(super) fn lose_pod(&mut self) {
        self.stop_hearing();
        let incarnation = self.incarnation.take().filter(|_| self.seen.pod.is_some());
        let seen = Observation { pod: self.seen.pod.take(), ..Observation::NEW };
        *self = Self { pods_before: self.pods_before, incarnation, seen, ..Self::new() };
    }

    /// Prepares for the next start after a failed start. If its pod still exists, the pod may serve the next start.
    pub(super) fn begin_again(&mut self) {
        if self.seen.pod.is_none() {
            return self.lose_pod();
        }
        self.has_lost_run = false;
        self.is_stopped = false;
        self.deletion_asked_at = None;
        self.watch_run(false);
    }

    /// Tells its follower whether its agent's status may change by itself from now on.
    pub(super) fn watch_run(&self, may_change: bool) {
        self.follower.iter().for_each(|follower| follower.watch_run(may_change));
    }

    /// Drops details that a finished job's view and record already contain. Keeps whether the agent was configured.
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

    /// A replica about which nothing is known yet.
    pub(super) fn new() -> Self {
        Self {
            pods_before: 0,
            incarnation: None,
            has_lost_run: false,
            seen: Observation::NEW,
            is_seed_only: false,
            is_stopped: false,
            is_released: false,
            deletion_asked_at: None,
            follower: None,
            output_from: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_pod_with_another_uid_is_another_pod() {
        let listed =
            |uid: &str| Some(Pod { incarnation: uid.to_owned().into(), state: PodState::Pending { reason: None } });
        let mut replica = Replica::new();
        let news = ["a", "a", "b"].map(|uid| replica.see(listed(uid)));
        assert_eq!(news, [PodNews::Same, PodNews::Same, PodNews::Replaced]);
        let news = [None, None, listed("c"), listed("c")].map(|pod| replica.see(pod));
        assert_eq!(news, [PodNews::Deleted, PodNews::Same, PodNews::Replaced, PodNews::Same]);
    }
}
