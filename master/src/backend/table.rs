//! The table of a job's pods, for back ends that write the table themselves.

use job::observation::{Incarnation, Pod, PodState};
use protocol::ids::ReplicaId;
use tokio::sync::watch;

use super::{PodTable, new_incarnation};

/// The pods of one job.
#[derive(Debug, Default)]
pub(super) struct Table(watch::Sender<PodTable>);

impl Table {
    /// Lists a new pod. If the replica's pod is already listed, changes nothing and returns false.
    pub(super) fn list(&self, replica: ReplicaId, state: PodState) -> bool {
        self.0.send_if_modified(|table| {
            let is_new = !table.contains_key(&replica);
            if is_new {
                table.insert(replica, Pod { incarnation: new_incarnation(), state });
            }
            is_new
        })
    }

    /// Changes the state of a listed pod.
    pub(super) fn set(&self, replica: ReplicaId, state: PodState) {
        self.0.send_modify(|table| {
            table.entry(replica).and_modify(|pod| pod.state = state);
        });
    }

    pub(super) fn remove(&self, replica: ReplicaId) {
        self.0.send_modify(|table| drop(table.remove(&replica)));
    }

    /// The first pod, in the order of the replicas, that passes `test`.
    pub(super) fn find(&self, test: impl Fn(ReplicaId, &Pod) -> bool) -> Option<ReplicaId> {
        self.0.borrow().iter().find(|(id, pod)| test(**id, pod)).map(|(id, _)| *id)
    }

    /// The pod of a replica.
    pub(super) fn get(&self, replica: ReplicaId) -> Option<Pod> {
        self.0.borrow().get(&replica).cloned()
    }

    /// Whether the replica still has this pod.
    pub(super) fn has(&self, replica: ReplicaId, incarnation: &Incarnation) -> bool {
        self.0.borrow().get(&replica).is_some_and(|pod| pod.incarnation == *incarnation)
    }

    /// The table now, and then each change.
    pub(super) fn subscribe(&self) -> watch::Receiver<PodTable> {
        self.0.subscribe()
    }

    /// Whether somebody has a receiver of this table.
    pub(super) fn is_watched(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Whether the table has no pods and nobody watches it.
    pub(super) fn is_unused(&self) -> bool {
        self.0.borrow().is_empty() && !self.is_watched()
    }
}
