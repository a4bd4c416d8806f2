//! From a job's counts to its replicas: the last reader of `worker_num` and its kin.

use protocol::ids::{ReplicaId, Role};
use protocol::job::JobSpec;

/// Every replica of the job, in the order of roles and indexes. From here on their number is `plan.len()`.
pub fn replicas(spec: &JobSpec) -> Vec<ReplicaId> {
    let of_role = |role: Role| (0..spec.count(role)).map(move |index| ReplicaId { role, index });
    Role::ALL.into_iter().flat_map(of_role).collect()
}
