//! What a task speaks of when it reports to its driver.

use protocol::ids::ReplicaId;

/// A replica with the pod that it has, or is to have: what is heard of one with an earlier pod is history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subject {
    /// Which replica.
    pub(super) id: ReplicaId,
    /// Its pod's number, counted from 0.
    pub(super) pod: u32,
}
