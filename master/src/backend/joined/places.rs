//! The places of one job: which machine has which place, and what a machine's message changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use job::observation::{Addresses, Incarnation, PodState};
use protocol::ids::ReplicaId;
use protocol::join::{JoinRequest, Left};
use tokio_util::task::AbortOnDropHandle;

use crate::backend::table::Table;

/// The places of one job.
#[derive(Default)]
pub(super) struct Places {
    pub(super) table: Table,
    /// The newest message of each place's machine.
    pub(super) machines: BTreeMap<ReplicaId, JoinRequest>,
    /// The tasks that free the places of machines that must leave, and of unknown machines.
    pub(super) endings: BTreeMap<ReplicaId, AbortOnDropHandle<()>>,
}

/// The changes that a machine's message causes.
pub(super) struct MessageEffects {
    /// The machine's place. `None` if the machine waits for a place, must leave its place, or has left.
    pub(super) place: Option<ReplicaId>,
    /// The messages to write, first to disk and then to the table of pods.
    pub(super) news: Vec<MachineNews>,
}

/// A new message about the machine of a pod.
pub(super) struct MachineNews {
    pub(super) replica: ReplicaId,
    pub(super) message: JoinRequest,
    incarnation: Incarnation,
}

impl Places {
    /// Lists a machine that joined under an earlier master.
    pub(super) fn find_again(&mut self, replica: ReplicaId, message: JoinRequest) {
        self.table.list(replica, state_of(&message));
        self.machines.insert(replica, message);
    }

    /// Lists a machine about which nothing is known, except that it joined under an earlier master. `freeing` is the
    /// task that frees the place when the machine's run must be dead. The pod has no address, so the master does not
    /// poll it. Until the place is free, no other machine can take it.
    pub(super) fn hold(&mut self, replica: ReplicaId, freeing: AbortOnDropHandle<()>) {
        let reason = "the master cannot read the stored message of its machine".to_owned();
        self.table.list(replica, PodState::Leaving { reason });
        self.endings.insert(replica, freeing);
    }

    /// Decides what a machine's message changes.
    pub(super) fn choose(&self, message: JoinRequest) -> MessageEffects {
        let known = self.machines.iter().find(|(_, known)| known.boot_id == message.boot_id).map(|(id, _)| *id);
        match (known, message.left) {
            (Some(id), None) => {
                MessageEffects { place: Some(id).filter(|id| !self.endings.contains_key(id)), news: vec![] }
            }
            (Some(id), Some(_)) => MessageEffects { place: None, news: self.news(id, message).into_iter().collect() },
            (None, Some(_)) => MessageEffects { place: None, news: vec![] },
            (None, None) => self.choose_place(message),
        }
    }

    /// Chooses a place for a machine that has none.
    fn choose_place(&self, message: JoinRequest) -> MessageEffects {
        // Only one agent can listen at an address, so an earlier agent with this address has ended.
        let earlier = self.machines.iter().find(|(_, known)| known.address == message.address);
        let killed = earlier
            .and_then(|(id, known)| self.news(*id, JoinRequest { left: Some(Left::Terminated), ..known.clone() }));
        let is_free = |id: ReplicaId| self.table.find(|other, pod| other == id && is_waiting(&pod.state)).is_some();
        let place =
            message.place.filter(|id| is_free(*id)).or_else(|| self.table.find(|_, pod| is_waiting(&pod.state)));
        let joins = place.and_then(|id| self.news(id, message));
        MessageEffects { place, news: killed.into_iter().chain(joins).collect() }
    }

    fn news(&self, replica: ReplicaId, message: JoinRequest) -> Option<MachineNews> {
        let incarnation = self.table.get(replica)?.incarnation;
        Some(MachineNews { replica, message, incarnation })
    }

    /// Updates a pod with a message that is on disk. If the pod no longer exists, changes nothing and returns false.
    pub(super) fn occupy(&mut self, MachineNews { replica, message, incarnation }: MachineNews) -> bool {
        let exists = self.table.has(replica, &incarnation);
        if exists {
            self.table.set(replica, state_of(&message));
            self.endings.remove(&replica);
            self.machines.insert(replica, message);
        }
        exists
    }

    /// Whether the place belongs to the machine with this boot id.
    pub(super) fn is_of(&self, replica: ReplicaId, boot_id: &str) -> bool {
        self.machines.get(&replica).is_some_and(|known| known.boot_id == boot_id)
    }

    /// The first machine that has not left and whose address is not `address`.
    pub(super) fn neighbour(&self, address: SocketAddr) -> Option<(ReplicaId, SocketAddr)> {
        let mut others = self.machines.iter().filter(|(_, known)| known.left.is_none() && known.address != address);
        others.next().map(|(id, known)| (*id, known.address))
    }

    /// Removes a pod, the message of its machine, and the task that frees the place.
    pub(super) fn remove(&mut self, replica: ReplicaId) {
        self.machines.remove(&replica);
        self.endings.remove(&replica);
        self.table.remove(replica);
    }
}

fn is_waiting(state: &PodState) -> bool {
    matches!(state, PodState::Pending { .. })
}

/// The state of a machine's pod after this message.
fn state_of(message: &JoinRequest) -> PodState {
    match message.left {
        None => {
            let tensorflow = SocketAddr::new(message.address.ip(), message.tensorflow_port.get());
            PodState::Running(Addresses { agent: message.address, tensorflow })
        }
        Some(Left::Finished) => PodState::ended(None, "its agent has ended"),
        Some(Left::Terminated) => PodState::disrupted("its agent was ended on its machine"),
    }
}
