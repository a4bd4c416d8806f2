//! The environment variables from which scripts for PyTorch (torchrun), JAX, Keras on JAX and older TensorFlow learn their
//! rank and addresses. All values are defaults: a job may set each variable itself.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use protocol::env::launchers as env;
use protocol::ids::{Rank, ReplicaId, Role};
use protocol::job::JobSpec;
use protocol::tf_config::servers;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Maximum of TORCHELASTIC_MAX_RESTARTS, for scripts that keep the number in 32 bits with a sign.
const TORCH_RESTARTS_MAX: u32 = i32::MAX.cast_unsigned();

type Variable = (&'static str, Value);

/// The addresses of a gang, from which these variables are computed. A gang may have thousands of replicas, so values
/// that are the same for all replicas are computed once.
#[derive(Debug)]
pub(super) struct Peers {
    /// The replicas that train, in the order of their ranks.
    trainers: Vec<Trainer>,
    /// The number of training replicas on each host. Hosts are in the order of their first ranks.
    on_hosts: Vec<usize>,
    ps_hosts: Box<RawValue>,
    worker_hosts: Box<RawValue>,
}

#[derive(Debug, Clone, Copy)]
struct Trainer {
    replica: ReplicaId,
    address: SocketAddr,
    /// The index of the replica's host in `on_hosts`.
    host: usize,
    /// The replica's index among the training replicas on its host.
    local: usize,
}

impl Peers {
    pub(super) fn new(members: &BTreeMap<ReplicaId, SocketAddr>, spec: &JobSpec) -> Self {
        let (mut hosts, mut on_hosts): (HashMap<IpAddr, usize>, Vec<usize>) = Default::default();
        let trainers = members.iter().filter(|(id, _)| id.role.trains());
        let trainer = |(replica, address): (&ReplicaId, &SocketAddr)| {
            let host = *hosts.entry(address.ip()).or_insert(on_hosts.len());
            if host == on_hosts.len() {
                on_hosts.push(0);
            }
            on_hosts[host] += 1;
            Trainer { replica: *replica, address: *address, host, local: on_hosts[host] - 1 }
        };
        let trainers = trainers.map(trainer).collect();
        let listed = |role: Role| {
            let of_role = members.iter().filter(|(id, _)| id.role == role);
            let of_role = of_role.flat_map(|(id, first)| servers(*first, spec.processes_of(*id)));
            json(&of_role.map(|address| address.to_string()).collect::<Vec<_>>().join(","))
        };
        let (ps_hosts, worker_hosts) = (listed(Role::Ps), listed(Role::Worker));
        Self { trainers, on_hosts, ps_hosts, worker_hosts }
    }

    /// The variables of every replica, as JSON. Parameter servers need them too.
    pub(super) fn of_all(&self) -> [(&'static str, &RawValue); 2] {
        [(env::PS_HOSTS, &*self.ps_hosts), (env::WORKER_HOSTS, &*self.worker_hosts)]
    }

    /// The additional variables of a process that trains. `uid` is the job's uid.
    pub(super) fn of_rank(&self, Rank(rank): Rank, spec: &JobSpec, uid: &str, restarts: u32) -> Vec<Variable> {
        let (each, rank) = (spec.nproc_per_node as usize, rank as usize);
        let (number, process, world) = (rank / each, rank % each, self.trainers.len() * each);
        let (first, Trainer { replica, host, local, .. }) = (self.trainers[0].address, self.trainers[number]);
        let per_node = spec.nproc_per_node;
        let per_node = if per_node > 1 { per_node } else { spec.gpus_of(replica).unwrap_or(0).max(1) };
        let address = first.ip().to_string();
        // Scripts for JAXJobs append `:PORT`, so an IPv6 address needs its brackets.
        let coordinator = if first.is_ipv6() { format!("[{address}]") } else { address.clone() };
        vec![
            (env::MASTER_ADDR, address.as_str().into()),
            (env::MASTER_PORT, first.port().into()),
            (env::LOCAL_RANK, (local * each + process).into()),
            (env::LOCAL_WORLD_SIZE, (self.on_hosts[host] * each).into()),
            (env::GROUP_RANK, host.into()),
            (env::GROUP_WORLD_SIZE, self.on_hosts.len().into()),
            (env::ROLE_NAME, "default".into()),
            (env::ROLE_RANK, rank.into()),
            (env::ROLE_WORLD_SIZE, world.into()),
            (env::TORCHELASTIC_RUN_ID, uid.into()),
            (env::TORCHELASTIC_RESTART_COUNT, restarts.into()),
            (env::TORCHELASTIC_MAX_RESTARTS, spec.run_policy.max_restarts.min(TORCH_RESTARTS_MAX).into()),
            (env::TORCHELASTIC_USE_AGENT_STORE, "False".into()),
            (env::TORCH_NCCL_ASYNC_ERROR_HANDLING, 1.into()),
            (env::PET_NNODES, self.trainers.len().into()),
            (env::PET_NODE_RANK, number.into()),
            (env::PET_NPROC_PER_NODE, per_node.into()),
            (env::PET_MASTER_ADDR, address.into()),
            (env::PET_MASTER_PORT, first.port().into()),
            (env::JAX_COORDINATOR_ADDRESS, first.to_string().into()),
            (env::JAX_NUM_PROCESSES, world.into()),
            (env::JAX_PROCESS_ID, rank.into()),
            (env::COORDINATOR_ADDRESS, coordinator.into()),
            (env::COORDINATOR_PORT, first.port().into()),
            (env::NUM_PROCESSES, world.into()),
            (env::PROCESS_ID, rank.into()),
            (env::KERAS_DISTRIBUTION_JOB_ADDRESSES, first.to_string().into()),
            (env::KERAS_DISTRIBUTION_NUM_PROCESSES, world.into()),
            (env::KERAS_DISTRIBUTION_PROCESS_ID, rank.into()),
        ]
    }
}

/// The JSON of a text, a number, or a list of these.
pub(super) fn json(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("texts and numbers always serialize")
}
