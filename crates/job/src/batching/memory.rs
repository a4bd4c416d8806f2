//! Smaller batches for a replica whose memory was too small.

use protocol::failure::{Restarts, TooLargeBatch};
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;

/// The batch of a replica when its run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// The samples of the replica in one step.
    pub size: u32,
    /// A smaller size with which the replica has trained for long.
    pub lasted: Option<u32>,
}

/// What follows from runs that ended for lack of memory. Without a smaller size that has lasted, a replica gets half of its
/// size. `restarts` has the earlier failures of the job.
pub fn too_large(tried: &[(ReplicaId, Tried)], spec: &JobSpec, restarts: &Restarts) -> Vec<TooLargeBatch> {
    let multiple = spec.batching.unit();
    let half = |size: u32| size / 2 - size / 2 % multiple;
    let most = |tried: &Tried| tried.lasted.unwrap_or_else(|| half(tried.size));
    let new = |replica| tried.iter().find(|(known, _)| *known == replica).map(|(_, tried)| most(tried));
    let limit = |replica| new(replica).into_iter().chain(restarts.batch_limit(replica)).min();
    let possible = spec.workers_for_batch(limit).err();
    let batch = |(replica, tried): &(ReplicaId, Tried)| TooLargeBatch {
        replica: *replica,
        batch: tried.size,
        most: most(tried),
        possible,
    };
    tried.iter().map(batch).collect()
}
