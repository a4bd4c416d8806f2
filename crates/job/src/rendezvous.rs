//! Builds each member's environment from all members' addresses. Only this file writes TF_CONFIG, NUM_WORKERS and RANK.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use protocol::batching::BATCH_SIZE_LIST_KEY;
use protocol::env::{self, launchers};
use protocol::expansion::{TOTAL_LIMIT, expanded};
use protocol::ids::{Generation, Rank, ReplicaId, Role};
use protocol::job::JobSpec;
use protocol::tf_config::{TfCluster, TfConfig, TfConfigOptions};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::peers::{Peers, json};

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
    sizes: Option<Sizes>,
}

/// The first batch sizes of a start.
#[derive(Debug)]
struct Sizes {
    /// By rank; 0 for a chief that only directs the workers.
    of_ranks: Vec<u32>,
    /// MUSTER_BATCH_SIZES.
    json: Box<RawValue>,
    /// BATCH_SIZE_LIST.
    list: Box<RawValue>,
    /// The list in TF_CONFIG.
    tf_config: Value,
}

impl<'a> Rendezvous<'a> {
    /// The rendezvous of `members`, each with the address of its TensorFlow server.
    pub fn new(spec: &'a JobSpec, generation: Generation, members: &BTreeMap<ReplicaId, SocketAddr>) -> Self {
        let hosts: BTreeSet<String> = members.values().map(|address| address.ip().to_string()).collect();
        let no_proxy = json(&hosts.into_iter().collect::<Vec<_>>().join(","));
        let cluster = TfCluster::new(members, |id| spec.processes_of(id));
        let cluster = json(&spec.tf_config.cluster(cluster));
        let peers = Peers::new(members, spec);
        let members: Vec<ReplicaId> = members.keys().copied().collect();
        let ranks = members.iter().filter(|id| id.role.trains()).copied().collect();
        Self { spec, generation, members, ranks, cluster, peers, no_proxy, uid: "", restarts: 0, sizes: None }
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

    /// Sets the first batch size of each rank. A rank without a batch has 0.
    #[must_use]
    pub fn with_sizes(self, of_ranks: Vec<u32>) -> Self {
        let text = serde_json::to_string(&of_ranks).expect("numbers always serialize");
        let tf_config = self.spec.batching.list.of(&of_ranks, self.count(Role::Ps));
        let list = json(&of_ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        let sizes = Sizes { json: json(&text), list, tf_config, of_ranks };
        Self { sizes: Some(sizes), ..self }
    }

    /// The variables about batch sizes that a job may replace.
    fn batch_variables(&'a self, rank: Option<Rank>) -> Vec<(&'static str, Variable<'a>)> {
        let Some(sizes) = &self.sizes else { return vec![] };
        let size = rank.and_then(|Rank(rank)| sizes.of_ranks.get(rank as usize)).filter(|size| **size > 0);
        let own = size
            .into_iter()
            .flat_map(|size| [launchers::BATCH_SIZE, launchers::WORKER_BATCH_SIZE].map(|name| (name, *size)));
        let global = sizes.of_ranks.iter().sum::<u32>();
        let of_all = [launchers::GLOBAL_BATCH_SIZE, launchers::GLOBAL_CLUSTER_BATCH_SIZE].map(|name| (name, global));
        let numbers = own.chain(of_all).map(|(name, number)| (name, Variable::Own(number.into())));
        numbers.chain([(launchers::BATCH_SIZE_LIST, Variable::OfAll(&sizes.list))]).collect()
    }

    /// The body of `POST /config` for one member.
    pub fn body(&'a self, replica: ReplicaId) -> ConfigBody<'a> {
        match self.spec.processes_of(replica) {
            1 => ConfigBody::One(self.environment(replica)),
            several => ConfigBody::of_several((0..several).map(|process| self.environment_of(replica, process))),
        }
    }

    /// The environment of the first process of one member.
    pub fn environment(&'a self, replica: ReplicaId) -> Environment<'a> {
        self.environment_of(replica, 0)
    }

    /// The environment of one process of a member.
    fn environment_of(&'a self, replica: ReplicaId, process: u32) -> Environment<'a> {
        let processes = self.spec.processes_of(replica);
        let rank = self.rank(replica).map(|Rank(first)| Rank(first + process));
        let in_role = replica.index * processes + process;
        let own = |(name, value)| (name, Variable::Own(value));
        let mut variables: BTreeMap<&str, Variable<'_>> = BTreeMap::new();
        variables.extend(self.peers.of_all().map(|(name, json)| (name, Variable::OfAll(json))));
        let of_rank = |rank| self.peers.of_rank(rank, self.spec, self.uid, self.restarts);
        variables.extend(rank.into_iter().flat_map(of_rank).map(own));
        variables.extend(self.batch_variables(rank));
        let constants = constants(self.spec, replica.role).into_iter();
        variables.extend(constants.map(|(name, value)| (name, Variable::Own(value.into()))));
        // No job may change these variables, so they replace earlier values.
        let computed = [
            (env::NUM_WORKERS, Value::from(self.count(Role::Worker))),
            (env::TOT_WORKERS, Value::from(self.count(Role::Worker))),
            (env::WORKER_NUMBER, Value::from(in_role)),
            (env::WORLD_SIZE, Value::from(self.count(Role::Chief) + self.count(Role::Worker))),
            (env::MUSTER_JOB, Value::from(self.spec.name.as_str())),
            (env::MUSTER_ROLE, Value::from(replica.role.as_str())),
            (env::MUSTER_INDEX, Value::from(replica.index)),
            (env::MUSTER_GENERATION, Value::from(self.generation.to_string())),
            (env::MUSTER_RESTART_COUNT, Value::from(self.restarts)),
        ];
        variables.extend(computed.map(own));
        if processes > 1 {
            variables.insert(env::MUSTER_PROCESS, Variable::Own(process.into()));
        }
        variables.insert(env::MUSTER_NO_PROXY, Variable::OfAll(&self.no_proxy));
        if let Some(sizes) = &self.sizes {
            variables.insert(env::MUSTER_BATCH_SIZES, Variable::OfAll(&sizes.json));
        }
        if let Some(Rank(rank)) = rank {
            variables.insert(env::RANK, Variable::Own(rank.into()));
        }
        let tf_config = self.tf_config(ReplicaId { index: in_role, ..replica });
        let expanded = expanded_env(self.spec, || {
            let texts = variables.iter().map(|(name, value)| (*name, value.text()));
            texts.chain(tf_config.as_ref().map(|config| (env::TF_CONFIG, json(config).get().to_owned()))).collect()
        });
        variables.extend(expanded.into_iter().map(|(name, value)| (name, Variable::Own(value.into()))));
        Environment { tf_config, variables }
    }

    /// TF_CONFIG of one process. `task` has its index in its role. `None` if the job omits TF_CONFIG for a gang of one
    /// member.
    fn tf_config(&'a self, task: ReplicaId) -> Option<TfConfig<'a, RawValue>> {
        let options @ TfConfigOptions { omit_single, chief_is_master: _, extra } = &self.spec.tf_config;
        let sizes = self.sizes.as_ref().map(|sizes| (BATCH_SIZE_LIST_KEY, &sizes.tf_config));
        let config = TfConfig { cluster: &*self.cluster, task: options.task(task), sizes, extra };
        (!omit_single || self.members.len() > 1 || self.spec.processes_of(task) > 1).then_some(config)
    }

    /// The rank of the replica's first process among all processes that train; `None` for a replica that does not train.
    pub fn rank(&self, replica: ReplicaId) -> Option<Rank> {
        let number = u32::try_from(self.ranks.binary_search(&replica).ok()?).ok()?;
        Some(Rank(number * self.spec.nproc_per_node))
    }

    /// The number of processes of this role.
    fn count(&self, role: Role) -> usize {
        let of_others = self.members.partition_point(|id| id.role < role);
        let replicas = self.members[of_others..].partition_point(|id| id.role == role);
        replicas * self.spec.processes_of(ReplicaId { role, index: 0 }) as usize
    }
}

/// The body of `POST /config`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ConfigBody<'a> {
    /// The environment of the only process.
    One(Environment<'a>),
    /// The variables that all processes share, and the others of each process. Of TF_CONFIG, they share all but the task.
    Several {
        /// Shared.
        all: Environment<'a>,
        /// By the index of the process.
        each: Vec<BTreeMap<&'a str, Value>>,
    },
}

impl<'a> ConfigBody<'a> {
    fn of_several(environments: impl Iterator<Item = Environment<'a>>) -> Self {
        let mut environments: Vec<Environment<'a>> = environments.collect();
        let mut shared = environments[0].variables.clone();
        shared.retain(|name, value| environments.iter().all(|other| other.variables.get(name) == Some(value)));
        let own = |environment: &Environment<'a>| {
            let own = environment.variables.iter().filter(|(name, _)| !shared.contains_key(*name));
            let own = own.map(|(name, value)| (*name, value.json()));
            let task = environment.tf_config.as_ref().map(|config| (env::TF_CONFIG, config.only_task()));
            own.chain(task).collect()
        };
        let each = environments.iter().map(own).collect();
        Self::Several { all: Environment { variables: shared, ..environments.swap_remove(0) }, each }
    }
}

/// The variables of one process: a JSON object with a key for each variable. The value of TF_CONFIG is itself an object.
/// Lists of addresses are serialized once for all members: each of a thousand members receives all thousand addresses.
#[derive(Debug)]
pub struct Environment<'a> {
    tf_config: Option<TfConfig<'a, RawValue>>,
    variables: BTreeMap<&'a str, Variable<'a>>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Variable<'a> {
    /// A value for this member only.
    Own(Value),
    /// A value that is the same for all members.
    OfAll(&'a RawValue),
}

impl PartialEq for Variable<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own(one), Self::Own(other)) => one == other,
            (Self::OfAll(one), Self::OfAll(other)) => std::ptr::eq(*one, *other),
            (Self::Own(_), Self::OfAll(_)) | (Self::OfAll(_), Self::Own(_)) => false,
        }
    }
}

impl Variable<'_> {
    fn json(&self) -> Value {
        match self {
            Self::Own(value) => value.clone(),
            Self::OfAll(json) => serde_json::from_str(json.get()).expect("it was written as JSON"),
        }
    }

    /// The value that a script gets.
    fn text(&self) -> String {
        let value = self.json();
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }
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

/// The job's own variables whose values refer to other variables, with `$(NAME)` replaced as in Kubernetes. `texts` gives
/// all variables with their values. If the expanded values together would be longer than Linux passes to a program, the
/// rest stays as it is.
pub(super) fn expanded_env<'a>(
    spec: &'a JobSpec,
    texts: impl FnOnce() -> BTreeMap<&'a str, String>,
) -> Vec<(&'a str, String)> {
    let refers = |(name, value): &(&env::EnvName, &String)| !name.is_reserved() && value.contains('$');
    let own: Vec<_> = spec.env.iter().filter(refers).collect();
    if own.is_empty() {
        return vec![];
    }
    let bounded = |texts: &BTreeMap<&str, String>| -> Vec<(&'a str, String)> {
        let value_of = |name: &[u8]| texts.get(str::from_utf8(name).ok()?).map(String::as_bytes);
        let mut left = TOTAL_LIMIT;
        let expanded = own.iter().map_while(|(name, value)| {
            let value = expanded(value.as_bytes(), value_of)?;
            left = left.checked_sub(value.len())?;
            Some((name.as_str(), String::from_utf8_lossy(&value).into_owned()))
        });
        expanded.collect()
    };
    let mut texts = texts();
    // A variable that refers to one of these variables gets its value as the script sees it.
    texts.extend(bounded(&texts));
    bounded(&texts)
}

/// Whether a replica of this role only runs a `tf.distribute.Server`.
fn serves(spec: &JobSpec, role: Role) -> bool {
    spec.ps_num > 0 && matches!(role, Role::Worker | Role::Ps)
}
