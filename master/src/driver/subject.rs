//! The replica and pod that a task's report is about.

use protocol::ids::ReplicaId;

/// A replica and the number of its current or next pod. A report about an earlier pod is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) id: ReplicaId,
    /// The number of the replica's pod, counted from 0.
    pub(super) pod: u32,
}
