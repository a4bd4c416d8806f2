//! One replica of a driver's job: what the driver has observed, and which work is in progress.

use std::net::SocketAddr;
use std::time::Duration;

use job::observation::{AgentState, Pod, Wait};
use job::phase::JobPhase;
use job::tracked::{PodLoss, Tracked};
use protocol::agent::RunState;
use protocol::ids::{Generation, ReplicaId};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::prototype;
use crate::driver::follower::Follower;
use crate::driver::reports::Subject;
use crate::logs::ReplicaLog;
use crate::store::JobRecord;

/// A replica, as its driver tracks it.
pub(super) struct Replica {
    pub(super) tracked: Tracked,
    /// Whether the replica's agent is an agent of the first prototype, which reports neither status nor output.
    pub(super) is_seed_only: bool,
    /// Whether the driver has already asked the replica's pod to shut down.
    pub(super) is_released: bool,
    /// The task that copies the replica's output and then deletes the pod. The task is aborted when the pod is gone, so
    /// that the task never deletes the next pod.
    pub(super) deletion: Option<AbortOnDropHandle<()>>,
    /// The task that polls the agent's status and copies the replica's output.
    pub(super) follower: Option<Follower>,
    /// The replica's output.
    pub(super) log: ReplicaLog,
    /// The offset in the replica's output at which the newest start begins.
    pub(super) output_from: u64,
    /// Since when a node has prepared the pod, as far as this driver has seen.
    prepared_since: Option<Instant>,
}

/// How long a node may prepare a pod before users see what the node does.
const USUAL_PREPARATION: Duration = Duration::from_secs(4);
/// How much later the driver looks, to show several pods at once: the pods of a gang are created one after another.
const TOGETHER: Duration = Duration::from_secs(1);

impl Replica {
    /// A replica when its driver begins. From the second epoch on, an earlier master may have created the replica's
    /// pod.
    pub(super) fn first(epoch: u32, log: ReplicaLog) -> Self {
        Self::of(Tracked::new(epoch > 1), log)
    }

    fn of(tracked: Tracked, log: ReplicaLog) -> Self {
        Self {
            tracked,
            is_seed_only: false,
            is_released: false,
            deletion: None,
            follower: None,
            log,
            output_from: 0,
            prepared_since: None,
        }
    }

    /// The address of the replica's agent, if the agent's newest answer is a status or an acknowledgement.
    pub(super) fn agent(&self) -> Option<SocketAddr> {
        let seen = &self.tracked.seen;
        Some(seen.addresses().filter(|_| seen.agent.has_answered())?.agent)
    }

    /// The replica with the number of its current or next pod.
    pub(super) fn subject(&self, id: ReplicaId) -> Subject {
        Subject { id, pod: self.tracked.pod_number() }
    }

    /// The address of the replica's agent, if a new follower must begin to poll it. A failed agent needs no follower,
    /// because it stays failed. An agent of the first prototype needs no follower, because it has no status.
    pub(super) fn to_follow(&self) -> Option<SocketAddr> {
        let is_followable = !self.is_seed_only && self.tracked.can_report();
        let address = self.tracked.seen.addresses().filter(|_| is_followable)?.agent;
        let is_followed = self.follower.as_ref().is_some_and(|follower| follower.is_at(address));
        (!is_followed).then_some(address)
    }

    /// Applies a report about the replica's agent.
    pub(super) fn hear(&mut self, subject: Subject, agent: AgentState, record: &JobRecord) {
        if subject.pod == self.tracked.pod_number() {
            self.is_seed_only |= agent == AgentState::SeedOnly;
            let agent = prototype::state_of(&mut self.tracked.seen, agent, record, subject.id);
            self.tracked.hear(subject.pod, agent);
        }
    }

    /// When to look at the pod again, if a node prepares the pod, and does not need longer than usual so far.
    pub(super) fn usual_preparation(&self) -> Option<Duration> {
        let left = USUAL_PREPARATION.saturating_sub(self.prepared_since?.elapsed());
        (!left.is_zero()).then_some(left + TOGETHER)
    }

    /// Stores the replica's pod as the back end lists it now, in this phase.
    pub(super) fn see(&mut self, pod: Option<Pod>, phase: &JobPhase) {
        self.change(|tracked| tracked.see(pod, phase));
        let is_prepared = matches!(self.tracked.seen.waits_for(), Some(Wait::Preparing { .. }));
        self.prepared_since = is_prepared.then(|| self.prepared_since.unwrap_or_else(Instant::now));
    }

    /// Changes what is known of the replica. If this shows that a pod no longer exists, ends the work on this pod, and
    /// forgets what only this pod had.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Tracked) -> PodLoss) {
        match change(&mut self.tracked) {
            PodLoss::None => {}
            PodLoss::Run => (self.follower, self.deletion, self.prepared_since) = (None, None, None),
            PodLoss::Pod => {
                let tracked = std::mem::replace(&mut self.tracked, Tracked::new(false));
                *self = Self::of(tracked, self.log.clone());
            }
        }
    }

    /// Prepares for the next start.
    pub(super) fn begin_again(&mut self) {
        let may_ask = self.deletion.as_ref().is_none_or(AbortOnDropHandle::is_finished);
        self.change(|tracked| tracked.begin_again(may_ask));
    }

    /// Makes the replica's follower poll the agent for this start.
    pub(super) fn watch_run(&self, start: Option<Generation>) {
        self.follower.iter().for_each(|follower| follower.watch_run(start));
    }

    /// Drops details that the finished job's record contains. Keeps whether the agent was configured or started.
    pub(super) fn finish(&mut self) {
        let agent = &mut self.tracked.seen.agent;
        let status = agent.status().cloned();
        *agent = match (status.as_ref().map(|status| status.state), status.and_then(|status| status.generation)) {
            (Some(RunState::Running | RunState::Stopping | RunState::Exited), Some(start)) => {
                AgentState::Started(start)
            }
            (Some(RunState::Configured), Some(start)) => AgentState::Configured(start),
            (Some(_), _) => AgentState::Silent,
            (None, _) => return,
        };
    }
}
