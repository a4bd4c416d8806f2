//! Expands a job's counts into its replicas. Nothing after it reads `worker_num` and the other counts.

use protocol::ids::{ReplicaId, Role};
use protocol::job::JobSpec;

/// All replicas of the job, ordered by role and index. From here on their number is `plan.len()`.
pub fn replicas(spec: &JobSpec) -> Vec<ReplicaId> {
    let of_role = |role: Role| (0..spec.count(role)).map(move |index| ReplicaId { role, index });
    Role::ALL.into_iter().flat_map(of_role).collect()
}
