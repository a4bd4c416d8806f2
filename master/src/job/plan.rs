//! Expands a job's counts, such as `worker_num`, into a list of replicas.

use protocol::ids::{ReplicaId, Role};
use protocol::job::JobSpec;

/// All replicas of the job, ordered by role and index.
pub fn replicas(spec: &JobSpec) -> Vec<ReplicaId> {
    let of_role = |role: Role| (0..spec.count(role)).map(move |index| ReplicaId { role, index });
    Role::ALL.into_iter().flat_map(of_role).collect()
}
