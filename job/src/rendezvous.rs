//! Builds each member's environment from all members' addresses. Only this file writes TF_CONFIG, NUM_WORKERS and RANK.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use protocol::env;
use protocol::ids::{Generation, Rank, ReplicaId, Role};
use protocol::job::JobSpec;
use protocol::tf_config::TfConfigOptions;
use protocol::tf_config::{Cluster, Task, TfConfig};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::peers::{Peers, json};

/// The chief's task type in TensorFlow 1.
const MASTER: &str = "master";

/// A complete gang, from which each member's environment is built.
#[derive(Debug)]
pub struct Rendezvous<'a> {
    spec: &'a JobSpec,
    generation: Generation,
    /// The members in the order of their seats.
    members: Vec<ReplicaId>,
    /// The members that train, in the order of their ranks.
    ranks: Vec<ReplicaId>,
    cluster: Box<RawValue>,
    peers: Peers,
    no_proxy: Box<RawValue>,
    uid: &'a str,
    restarts: u32,
}

impl<'a> Rendezvous<'a> {
    /// The rendezvous of `members`, each with the address of its TensorFlow server.
    pub fn new(spec: &'a JobSpec, generation: Generation, members: &BTreeMap<ReplicaId, SocketAddr>) -> Self {
        let hosts: BTreeSet<String> = members.values().map(|address| address.ip().to_string()).collect();
        let no_proxy = json(&hosts.into_iter().collect::<Vec<_>>().join(","));
        let cluster = Cluster::new(members);
        let cluster = json(&if spec.tf_config.chief_is_master { cluster.with_master() } else { cluster });
        let peers = Peers::new(members);
        let members: Vec<ReplicaId> = members.keys().copied().collect();
        let ranks = members.iter().filter(|id| id.role.trains()).copied().collect();
        Self { spec, generation, members, ranks, cluster, peers, no_proxy, uid: "", restarts: 0 }
    }

    /// Sets the job's uid, which scripts for torchrun receive.
    #[must_use]
    pub fn of_job(self, uid: &'a str) -> Self {
        Self { uid, ..self }
    }

    /// Sets how often the gang has been restarted.
    pub fn after_restarts(self, restarts: u32) -> Self {
        Self { restarts, ..self }
    }

    /// The environment of one member.
    pub fn environment(&'a self, replica: ReplicaId) -> Environment<'a> {
        let rank = self.rank(replica);
        let own = |(name, value)| (name, Variable::Own(value));
        let mut variables: BTreeMap<&str, Variable<'_>> = BTreeMap::new();
        variables.extend(self.peers.of_all().map(|(name, json)| (name, Variable::OfAll(json))));
        let of_rank = |rank| self.peers.of_rank(rank, self.spec, self.uid, self.restarts);
        variables.extend(rank.into_iter().flat_map(of_rank).map(own));
        let constants = constants(self.spec, replica.role).into_iter();
        variables.extend(constants.map(|(name, value)| (name, Variable::Own(value.into()))));
        // No job may change these variables, so they replace earlier values.
        let computed = [
            (env::NUM_WORKERS, Value::from(self.count(Role::Worker))),
            (env::TOT_WORKERS, Value::from(self.count(Role::Worker))),
            (env::WORKER_NUMBER, Value::from(replica.index)),
            (env::WORLD_SIZE, Value::from(self.count(Role::Chief) + self.count(Role::Worker))),
            (env::MUSTER_JOB, Value::from(self.spec.name.as_str())),
            (env::MUSTER_ROLE, Value::from(replica.role.as_str())),
            (env::MUSTER_INDEX, Value::from(replica.index)),
            (env::MUSTER_GENERATION, Value::from(self.generation.to_string())),
            (env::MUSTER_RESTART_COUNT, Value::from(self.restarts)),
        ];
        variables.extend(computed.map(own));
        variables.insert(env::MUSTER_NO_PROXY, Variable::OfAll(&self.no_proxy));
        if let Some(Rank(rank)) = rank {
            variables.insert(env::RANK, Variable::Own(rank.into()));
        }
        Environment { tf_config: self.tf_config(replica), variables }
    }

    /// TF_CONFIG of one member; `None` if the job omits TF_CONFIG for a gang of one member.
    fn tf_config(&'a self, replica: ReplicaId) -> Option<TfConfig<'a, RawValue>> {
        let TfConfigOptions { omit_single, chief_is_master, extra } = &self.spec.tf_config;
        let task = Task::from(replica);
        let kind = if *chief_is_master && replica.role == Role::Chief { MASTER } else { task.kind };
        let config = TfConfig { cluster: &*self.cluster, task: Task { kind, ..task }, extra };
        (!omit_single || self.members.len() > 1).then_some(config)
    }

    /// The rank among all training replicas; `None` for a replica that does not train.
    pub fn rank(&self, replica: ReplicaId) -> Option<Rank> {
        u32::try_from(self.ranks.binary_search(&replica).ok()?).ok().map(Rank)
    }

    fn count(&self, role: Role) -> usize {
        let of_others = self.members.partition_point(|id| id.role < role);
        self.members[of_others..].partition_point(|id| id.role == role)
    }
}

/// The body of `POST /config`: a JSON object with a key for each variable. The value of TF_CONFIG is itself an object.
/// Lists of addresses are serialized once for all members: each of a thousand members receives all thousand addresses.
#[derive(Debug)]
pub struct Environment<'a> {
    tf_config: Option<TfConfig<'a, RawValue>>,
    variables: BTreeMap<&'a str, Variable<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Variable<'a> {
    /// A value for this member only.
    Own(Value),
    /// A value that is the same for all members.
    OfAll(&'a RawValue),
}

impl Serialize for Environment<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let length = self.variables.len() + usize::from(self.tf_config.is_some());
        let mut map = serializer.serialize_map(Some(length))?;
        if let Some(tf_config) = &self.tf_config {
            map.serialize_entry(env::TF_CONFIG, tf_config)?;
        }
        for (name, value) in &self.variables {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The variables that are the same in every start: defaults, and the job's own variables, which override the defaults.
pub(super) fn constants(spec: &JobSpec, role: Role) -> BTreeMap<&str, &str> {
    let mut variables = BTreeMap::from([
        (env::PYTHONUNBUFFERED, "1"),
        (env::TF_GRPC_WORKER_CACHE_THREADS, "1"),
        (env::TF_GRPC_WORKER_CACHE_QUEUES, "1"),
    ]);
    if serves(spec, role) {
        variables.insert(env::GRPC_FAIL_FAST, "use_caller");
    }
    let of_job = spec.env.iter().filter(|(name, _)| !name.is_reserved());
    variables.extend(of_job.map(|(name, value)| (name.as_str(), value.as_str())));
    variables
}

/// Whether a replica of this role only runs a `tf.distribute.Server`.
fn serves(spec: &JobSpec, role: Role) -> bool {
    spec.ps_num > 0 && matches!(role, Role::Worker | Role::Ps)
}
