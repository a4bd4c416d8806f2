//! One replica of a driver's job: what is known of it, and what is under way for it.

use std::net::SocketAddr;

use protocol::agent::RunState;
use protocol::ids::{Generation, ReplicaId};
use tokio::time::Instant;

use super::follower::Follower;
use super::subject::Subject;
use crate::job::observation::{AgentState, Observation, PodState};

/// A replica, from its driver's side.
pub(super) struct Replica {
    /// How many pods it has had before, as far as this driver has seen them go.
    pods_before: u32,
    /// What is known of it.
    pub(super) seen: Observation,
    /// Whether its agent is the first prototype's, which has neither status nor output to follow.
    pub(super) is_seed_only: bool,
    /// Whether its run was told to stop; once is enough.
    pub(super) is_stopped: bool,
    /// Whether its pod was told to end; once is enough.
    pub(super) is_released: bool,
    /// When its pod was last asked to go.
    pub(super) deletion_asked_at: Option<Instant>,
    /// The task that asks its agent for its status and copies its output.
    pub(super) follower: Option<Follower>,
    /// Where the output of its newest start begins in what is kept.
    pub(super) output_from: u64,
}

impl Replica {
    /// A pod that has ended tells how its run ended, if it is known that there was one: an agent that could not be
    /// asked was told to run in this start. (One that says itself in which start it ran needs none of this.)
    pub(super) fn count_as_launched(&mut self, launched: Option<Generation>) {
        let has_ended = matches!(self.seen.pod, Some(PodState::Terminated { exit: Some(_), .. }));
        if let (AgentState::Silent, true, Some(generation)) = (&self.seen.agent, has_ended, launched) {
            self.seen.agent = AgentState::Started(generation);
        }
    }

    /// Where its agent is asked, once it has answered and is one of ours.
    pub(super) fn agent(&self) -> Option<SocketAddr> {
        let addresses = self.seen.addresses().filter(|_| self.seen.agent.has_answered())?;
        Some(addresses.agent)
    }

    /// It, with the pod that it has or is to have.
    pub(super) fn subject(&self, id: ReplicaId) -> Subject {
        Subject { id, pod: self.pods_before }
    }

    /// Where its agent is to be followed from now on, if it is not followed yet. An agent that was refused stays refused,
    /// and one of the first prototype has nothing to say.
    pub(super) fn to_follow(&self) -> Option<SocketAddr> {
        let is_followable = !self.is_seed_only && !matches!(self.seen.agent, AgentState::Failed(_));
        let address = self.seen.addresses().filter(|_| is_followable)?.agent;
        let is_followed = self.follower.as_ref().is_some_and(|follower| follower.is_at(address));
        (!is_followed).then_some(address)
    }

    /// Hears of its agent, unless that was an earlier pod's.
    pub(super) fn hear(&mut self, subject: Subject, agent: AgentState, launched: Option<Generation>) {
        if subject.pod != self.pods_before {
            return;
        }
        self.is_seed_only |= agent == AgentState::SeedOnly;
        // Told to run by an earlier master, or by this one before it was replaced: not to be told again.
        let before = launched.filter(|_| agent == AgentState::SeedOnly).map(AgentState::Started);
        self.seen.hear(before.unwrap_or(agent));
    }

    /// Takes in why its pod is not there yet.
    pub(super) fn wait(&mut self, subject: Subject, reason: String) {
        if subject.pod == self.pods_before {
            self.seen.denied = Some(reason);
        }
    }

    /// Its pod has gone, and what is known of it is the last: nothing more is heard from there.
    pub(super) fn stop_hearing(&mut self) {
        self.pods_before += 1;
        self.follower = None;
    }

    /// Its pod has gone, and with it all that was known of it.
    pub(super) fn lose_pod(&mut self) {
        self.stop_hearing();
        *self = Self { pods_before: self.pods_before, ..Self::new() };
    }

    /// Lets go of the start that has failed: its agent, if it can serve another, takes the next one.
    pub(super) fn begin_again(&mut self) {
        if self.seen.pod.is_none() {
            return self.lose_pod();
        }
        self.is_stopped = false;
        self.deletion_asked_at = None;
        self.watch_run(false);
    }

    /// Tells its follower whether its agent may change by itself from now on.
    pub(super) fn watch_run(&self, may_change: bool) {
        self.follower.iter().for_each(|follower| follower.watch_run(may_change));
    }

    /// Lets go of what a finished job's view and record hold: of its agent it only matters whether it had a run.
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

    /// One of which nothing is known yet.
    pub(super) fn new() -> Self {
        Self {
            pods_before: 0,
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
    fn what_is_heard_late_of_a_pod_that_has_gone_says_nothing_of_the_next() {
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
}
