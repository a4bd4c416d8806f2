//! TF_CONFIG, as TensorFlow reads it: the addresses of all members, and the role and index of one replica
//! (`tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py`).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::batching::BATCH_SIZE_LIST_KEY;
use crate::env::{ENTRY_LIMIT, TF_CONFIG};
use crate::ids::{ReplicaId, Role};

/// How TF_CONFIG differs from the usual form.
#[serde_with::apply(_ => #[serde(skip_serializing_if = "crate::is_default")])]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TfConfigOptions {
    /// Whether a job with one replica has no TF_CONFIG.
    pub omit_single: bool,
    /// Whether the chief is called `master`, as in TensorFlow 1.
    pub chief_is_master: bool,
    /// Further keys and their values, such as `environment`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extra: serde_json::Map<String, Value>,
}

/// The chief's task type in TensorFlow 1.
const MASTER: &str = "master";

impl TfConfigOptions {
    /// This cluster, with the chief under the name that the job wants.
    pub fn cluster(&self, cluster: TfCluster) -> TfCluster {
        if self.chief_is_master { cluster.with_master() } else { cluster }
    }

    /// The task of the member in this seat, in such a cluster. For several processes, `seat` has the index of the process
    /// among all processes of its role.
    pub fn task(&self, seat: ReplicaId) -> Task {
        let task = Task::from(seat);
        if self.chief_is_master && seat.role == Role::Chief { Task { kind: MASTER, ..task } } else { task }
    }
}

const LONGEST_MEMBER: usize = r#""255.255.255.255:65535","#.len();
const FRAME: usize = r#"{"cluster":{"chief":[],"worker":[],"ps":[]},"task":{"type":"evaluator","index":99999}}"#.len();
const NAME_EQUALS_AND_NUL: usize = TF_CONFIG.len() + 2;

/// Maximum members of a TensorFlow cluster with the usual TF_CONFIG: see [`members_max`].
pub const MEMBERS_MAX: u32 = members_beside(0, 0);

/// How many members fit beside `further` bytes, if each member needs `more` bytes in addition to its address.
const fn members_beside(further: usize, more: usize) -> u32 {
    (ENTRY_LIMIT.saturating_sub(FRAME + NAME_EQUALS_AND_NUL + further) / (LONGEST_MEMBER + more)) as u32
}

/// Maximum members of a TensorFlow cluster. TF_CONFIG then fits into one environment variable, whatever IPv4 addresses
/// and ports the members get, and whatever batch sizes add up to the global batch.
pub fn members_max(options: &TfConfigOptions, global_batch: Option<u32>) -> u32 {
    // The conversion cannot fail, because all keys are strings.
    let json = serde_json::to_string(&options.extra).map_or(0, |json| json.len());
    let extra = if options.extra.is_empty() { 0 } else { json };
    let (list, size) = match global_batch {
        None => (0, 0),
        Some(batch) => (r#","":"[]""#.len() + BATCH_SIZE_LIST_KEY.len(), batch.to_string().len() + 1),
    };
    let name_of_chief = usize::from(options.chief_is_master);
    members_beside(name_of_chief + extra + list, size)
}

/// The members of a TensorFlow cluster: addresses by role, in the order of indexes. Evaluators are not
/// members, because TensorFlow would wait for them.
#[serde_with::apply(_ => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TfCluster {
    chief: Vec<String>,
    /// The chief under its name in TensorFlow 1.
    master: Vec<String>,
    worker: Vec<String>,
    ps: Vec<String>,
}

impl TfCluster {
    /// The cluster of these members. `members` maps each replica to the address of its first TensorFlow server. A replica
    /// of several processes has a server for each of them, at the next ports.
    pub fn new(members: &BTreeMap<ReplicaId, SocketAddr>, processes_of: impl Fn(ReplicaId) -> u32) -> Self {
        let addresses = |role: Role| {
            let of_role = members.iter().filter(|(id, _)| id.role == role);
            let servers = of_role.flat_map(|(id, first)| servers(*first, processes_of(*id)));
            servers.map(|address| address.to_string()).collect()
        };
        let (chief, worker, ps) = (addresses(Role::Chief), addresses(Role::Worker), addresses(Role::Ps));
        Self { chief, master: vec![], worker, ps }
    }

    /// The same cluster, with the chief under its name in TensorFlow 1.
    fn with_master(self) -> Self {
        Self { master: self.chief, chief: vec![], ..self }
    }
}

/// The addresses of the TensorFlow servers of a replica of this many processes.
pub fn servers(first: SocketAddr, processes: u32) -> impl Iterator<Item = SocketAddr> {
    (0..processes).map(move |process| {
        let port = first.port().saturating_add(u16::try_from(process).unwrap_or(u16::MAX));
        SocketAddr::new(first.ip(), port)
    })
}

/// The role and index of one replica, or of one of its processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Task {
    /// The task type: a key of the cluster, or `evaluator`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The index in the list `cluster[type]`, from 0.
    pub index: u32,
}

impl From<ReplicaId> for Task {
    fn from(id: ReplicaId) -> Self {
        Self { kind: id.role.as_str(), index: id.index }
    }
}

/// The value of TF_CONFIG. The cluster is borrowed, because it is the same for every member. `C` is [`TfCluster`], or a
/// type that contains the JSON of a cluster.
#[derive(Debug)]
pub struct TfConfig<'a, C: ?Sized = TfCluster> {
    /// The cluster; the same for all members.
    pub cluster: &'a C,
    /// This replica's task.
    pub task: Task,
    /// The key and the value of the batch sizes, if the job has a global batch.
    pub sizes: Option<(&'static str, &'a Value)>,
    /// Further keys. None of them is in [`COMPUTED_KEYS`].
    pub extra: &'a Map<String, Value>,
}

impl<C: ?Sized> TfConfig<'_, C> {
    /// TF_CONFIG with the task alone, the only part in which the processes of a replica differ.
    pub fn only_task(&self) -> Value {
        let task = serde_json::to_value(&self.task).expect("texts and numbers always serialize");
        Value::Object(Map::from_iter([(COMPUTED_KEYS[1].to_owned(), task)]))
    }
}

/// The keys of TF_CONFIG that Muster computes.
pub const COMPUTED_KEYS: [&str; 2] = ["cluster", "task"];

impl<C: Serialize + ?Sized> Serialize for TfConfig<'_, C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { cluster, task, sizes, extra } = self;
        let keys = COMPUTED_KEYS.len() + usize::from(sizes.is_some()) + extra.len();
        let mut map = serializer.serialize_map(Some(keys))?;
        map.serialize_entry(COMPUTED_KEYS[0], cluster)?;
        map.serialize_entry(COMPUTED_KEYS[1], task)?;
        for (key, value) in sizes.iter().copied().chain(extra.iter().map(|(key, value)| (key.as_str(), value))) {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}
