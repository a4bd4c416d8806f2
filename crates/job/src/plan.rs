//! Expands a job's counts, such as `worker_num`, into a list of replicas.

use protocol::elastic::Workers;
use protocol::ids::{ReplicaId, Role};
use protocol::job::JobSpec;

/// All replicas of the job, ordered by role and index.
pub fn replicas(spec: &JobSpec) -> Vec<ReplicaId> {
    with_workers(spec, spec.worker_num)
}

/// All replicas of the job when it has `workers.max` workers. `None`: the number of workers in the spec.
pub fn replicas_now(spec: &JobSpec, workers: Option<Workers>) -> Vec<ReplicaId> {
    with_workers(spec, workers.map_or(spec.worker_num, |workers| workers.max))
}

/// The kinds of the job's pods. For each kind: a replica of this kind, and how many pods of it the smallest gang has.
pub fn kinds(spec: &JobSpec) -> Vec<(ReplicaId, usize)> {
    let mut kinds: Vec<(ReplicaId, usize)> = vec![];
    for replica in with_workers(spec, spec.worker_min.unwrap_or(spec.worker_num)) {
        // Groups are compared by identity: their templates may be large.
        let group = |id: ReplicaId| spec.group_of(id).map(std::ptr::from_ref);
        let is_same = |other: ReplicaId| group(other) == group(replica);
        match kinds.iter_mut().find(|(first, _)| is_same(*first)) {
            Some((_, pods)) => *pods += 1,
            None => kinds.push((replica, 1)),
        }
    }
    kinds
}

fn with_workers(spec: &JobSpec, workers: u32) -> Vec<ReplicaId> {
    let count = |role: Role| if role == Role::Worker { workers } else { spec.count(role) };
    let of_role = |role: Role| (0..count(role)).map(move |index| ReplicaId { role, index });
    Role::ALL.into_iter().flat_map(of_role).collect()
}
