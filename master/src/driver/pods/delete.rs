//! Deletes a job's pods, and lets agents end their pods by themselves.

use std::time::Duration;

use futures_util::future::OptionFuture;
use futures_util::{FutureExt, StreamExt, stream};
use job::observation::{AgentState, PodDeletion, Presence};
use job::phase::PodSelection;
use job::policy::RELEASE_TIMEOUT;
use job::replica::ReplicaPhase;
use protocol::ids::{Generation, ReplicaId};
use protocol::lease::Standing;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use super::Pods;
use super::create::PODS_AT_ONCE;
use super::table::ReplicaTable;
use crate::driver::follower::Follower;
use crate::driver::machine::Machine;
use crate::driver::tasks;

/// Maximum time to copy the last bytes from an agent that has ended.
const LAST_BYTES_TIMEOUT: Duration = Duration::from_millis(50);

impl Pods {
    /// Deletes one pod after its output is copied. Skips a pod whose earlier request may still take effect.
    pub(in crate::driver) fn replace(&self, replicas: &mut ReplicaTable, id: ReplicaId, now: Duration) {
        let Some(replica) = replicas.get_mut(id) else { return };
        if !replica.tracked.ask_to_go(now, RELEASE_TIMEOUT) {
            return;
        }
        let is_live = replica.tracked.seen.presence() == Presence::Live;
        // If the agent is dead, only bytes that are in transit can still arrive.
        let patience = if is_live { tasks::COPY_TIMEOUT } else { LAST_BYTES_TIMEOUT };
        // An agent that does not answer has no further output.
        let follower = replica.follower.as_ref().filter(|_| !replica.tracked.seen.agent.is_lost());
        let copied = OptionFuture::from(follower.map(Follower::caught_up));
        let (common, standing) = (self.common.clone(), replica.tracked.seen.agent.standing());
        replica.deletion = Some(tasks::spawn(&self.common.reporter, async move {
            // Output that is not copied within `patience` is lost with the pod.
            let _ = timeout(patience, copied).await;
            tasks::delete(&common, id, standing).await;
        }));
    }

    /// Deletes a pod whose agent does not stop its run. If the run has ended by now, or the pod serves the next start,
    /// the pod stays.
    pub(in crate::driver) fn delete_unstopped(
        &self,
        replicas: &mut ReplicaTable,
        (id, reason): (ReplicaId, &str),
        horizon: Option<Generation>,
        tasks: &mut JoinSet<()>,
    ) {
        let Some(replica) = replicas.get_mut(id) else { return };
        let has_ended = ReplicaPhase::of(&replica.tracked.seen, horizon).is_dead();
        if !replica.tracked.is_stopped || has_ended || replica.tracked.seen.presence() != Presence::Live {
            return;
        }
        let common = self.common.clone();
        warn!(job = %common.job.name, replica = %id, reason, "the agent does not stop its run; deleting the pod");
        replica.tracked.seen.deletion = PodDeletion::Asked;
        tasks.spawn(async move { tasks::delete(&common, id, Standing::Held).await });
    }

    /// Asks each pod to end, and marks its output as complete.
    pub(in crate::driver) fn release(&self, replicas: &mut ReplicaTable, now: Duration, tasks: &mut JoinSet<()>) {
        for (id, replica) in replicas.iter_mut() {
            let presence = replica.tracked.seen.presence();
            // Only a deletion ends the other containers of a pod whose agent has ended.
            let is_occupied = presence == Presence::Occupied && replica.tracked.seen.deletion == PodDeletion::NotAsked;
            // Wait for the agent's first answer. `step` limits this wait.
            let is_unheard =
                replica.tracked.seen.agent == AgentState::Silent && replica.tracked.seen.addresses().is_some();
            if !is_occupied && (is_unheard || replica.is_released) {
                continue;
            }
            if is_occupied {
                replica.tracked.ask_to_go(now, Duration::ZERO);
            }
            // An evicted pod ends without a request, and its exec.py may still be saving its state.
            let is_to_end = !replica.is_released && presence == Presence::Live && !replica.tracked.seen.is_leaving();
            replica.is_released |= presence.has_containers();
            let copied = replica.follower.as_ref().map(Follower::caught_up);
            // Nothing is left to wait for, so spawn no task. After a takeover, an ended job may have thousands of
            // replicas without pods.
            if copied.is_none() && !is_to_end && !is_occupied {
                replica.log.complete();
                continue;
            }
            let complete = tasks::complete(replica.log.clone(), OptionFuture::from(copied).map(drop));
            let agent = replica.agent().filter(|_| is_to_end);
            let standing = replica.tracked.seen.agent.standing();
            let common = self.common.clone();
            tasks.spawn(async move {
                // First complete the output, so that its readers do not wait for the pod's end.
                complete.await;
                let is_finished = match agent {
                    Some(agent) => common.agents.finish(agent).await.is_ok(),
                    None => false,
                };
                if is_occupied || is_to_end && !is_finished {
                    tasks::delete(&common, id, standing).await;
                }
            });
        }
    }

    /// Deletes the selected pods. A deletion is repeated only after [`RELEASE_TIMEOUT`], because the back end's watch
    /// needs some time to report the deletion.
    pub(in crate::driver) async fn delete(&self, replicas: &mut ReplicaTable, which: PodSelection, machine: &Machine) {
        let (gang, now) = (replicas.gang(machine.horizon()), machine.elapsed());
        let included = gang.places().iter().filter(|place| which.includes(place, &gang)).map(|place| place.id);
        let mut chosen = vec![];
        for id in included.collect::<Vec<_>>() {
            let Some(replica) = replicas.get_mut(id) else { continue };
            if replica.tracked.ask_to_go(now, RELEASE_TIMEOUT) {
                chosen.push((id, replica.tracked.seen.agent.standing()));
            }
        }
        match which {
            PodSelection::All if chosen.is_empty() => {}
            PodSelection::All => self.delete_all(replicas).await,
            PodSelection::Live | PodSelection::Unended | PodSelection::Idle => {
                let delete = |(id, standing)| tasks::delete(&self.common, id, standing);
                stream::iter(chosen).for_each_concurrent(PODS_AT_ONCE, delete).await;
            }
        }
    }

    /// Removes what the back end keeps as long as the record.
    pub(in crate::driver) async fn forget(&self) {
        self.common.context.backend.forget(&self.common.job).await;
    }

    /// Deletes every pod of the job, including pods that the watch has not reported yet.
    pub(in crate::driver) async fn delete_all(&self, replicas: &mut ReplicaTable) {
        for (_, replica) in replicas.iter_mut() {
            if replica.tracked.seen.presence() != Presence::Absent {
                replica.tracked.seen.deletion = PodDeletion::Asked;
            }
        }
        tasks::delete_all(self.common.context.backend.as_ref(), &self.common.job).await;
    }
}
