//! The variables from which scripts for torchrun, JAX, Keras on JAX and older TensorFlow learn their place. All are
//! defaults: a job may set each one itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use protocol::env::launchers as env;
use protocol::ids::{Rank, ReplicaId, Role};
use protocol::job::JobSpec;
use serde_json::Value;

/// A variable and its value.
type Variable = (&'static str, Value);

/// The addresses of a gang, as these scripts need them.
#[derive(Debug)]
pub(super) struct Peers {
    /// The addresses of the replicas that train, by rank.
    ranks: Vec<SocketAddr>,
    /// The hosts of these replicas. Each is listed once, in the order of the ranks.
    hosts: Vec<IpAddr>,
    ps_hosts: String,
    worker_hosts: String,
}

impl Peers {
    pub(super) fn new(members: &BTreeMap<ReplicaId, SocketAddr>) -> Self {
        let ranks: Vec<SocketAddr> =
            members.iter().filter(|(id, _)| id.role.trains()).map(|(_, address)| *address).collect();
        let mut hosts = vec![];
        for host in ranks.iter().map(SocketAddr::ip) {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        let listed = |role: Role| {
            let of_role = members.iter().filter(|(id, _)| id.role == role).map(|(_, address)| address.to_string());
            of_role.collect::<Vec<_>>().join(",")
        };
        Self { ranks, hosts, ps_hosts: listed(Role::Ps), worker_hosts: listed(Role::Worker) }
    }

    /// The variables of every replica. Parameter servers need them too.
    pub(super) fn of_all(&self) -> [Variable; 2] {
        [(env::PS_HOSTS, self.ps_hosts.as_str().into()), (env::WORKER_HOSTS, self.worker_hosts.as_str().into())]
    }

    /// The further variables of a replica that trains. `uid` is the job's.
    pub(super) fn of_rank(&self, Rank(rank): Rank, spec: &JobSpec, uid: &str, restarts: u32) -> Vec<Variable> {
        let (first, own) = (self.ranks[0], self.ranks[rank as usize].ip());
        let count_of_own = |ranks: &[SocketAddr]| ranks.iter().filter(|rank| rank.ip() == own).count();
        let (address, world, rank) = (first.ip().to_string(), self.ranks.len(), rank as usize);
        vec![
            (env::MASTER_ADDR, address.as_str().into()),
            (env::MASTER_PORT, first.port().into()),
            (env::LOCAL_RANK, count_of_own(&self.ranks[..rank]).into()),
            (env::LOCAL_WORLD_SIZE, count_of_own(&self.ranks).into()),
            (env::GROUP_RANK, self.hosts.iter().position(|host| *host == own).into()),
            (env::GROUP_WORLD_SIZE, self.hosts.len().into()),
            (env::ROLE_NAME, "default".into()),
            (env::ROLE_RANK, rank.into()),
            (env::ROLE_WORLD_SIZE, world.into()),
            (env::TORCHELASTIC_RUN_ID, uid.into()),
            (env::TORCHELASTIC_RESTART_COUNT, restarts.into()),
            (env::TORCHELASTIC_MAX_RESTARTS, spec.run_policy.max_restarts.into()),
            (env::TORCHELASTIC_USE_AGENT_STORE, "False".into()),
            (env::TORCH_NCCL_ASYNC_ERROR_HANDLING, 1.into()),
            (env::PET_NNODES, world.into()),
            (env::PET_NODE_RANK, rank.into()),
            (env::PET_NPROC_PER_NODE, spec.pod.gpus.unwrap_or(0).max(1).into()),
            (env::PET_MASTER_ADDR, address.into()),
            (env::PET_MASTER_PORT, first.port().into()),
            (env::JAX_COORDINATOR_ADDRESS, first.to_string().into()),
            (env::JAX_NUM_PROCESSES, world.into()),
            (env::JAX_PROCESS_ID, rank.into()),
            (env::KERAS_DISTRIBUTION_JOB_ADDRESSES, first.to_string().into()),
            (env::KERAS_DISTRIBUTION_NUM_PROCESSES, world.into()),
            (env::KERAS_DISTRIBUTION_PROCESS_ID, rank.into()),
        ]
    }
}
