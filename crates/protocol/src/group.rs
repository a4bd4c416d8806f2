//! Groups of replicas whose pods have the same options, and the pod templates that other launchers' files give to
//! groups.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::batching::BatchBounds;
use crate::env::EnvName;
use crate::expansion::{TOTAL_LIMIT, expanded};
use crate::ids::Role;
use crate::pod::Amount;
use crate::routes::TENSORFLOW_PORT;

/// Maximum groups of a job. The limit is low because the cluster checks a pod of each group before a job is accepted.
pub const GROUPS_MAX: usize = 64;

/// Consecutive replicas of one role whose pods have the same options. The first group of a role begins at index 0. Each
/// further group begins where the previous group ends. Together, the groups contain all replicas of the role.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The role of the group's replicas.
    pub role: Role,
    /// Number of replicas in the group, at least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5457))]
    pub count: u32,
    /// CPU request and limit. Absent: those of the job.
    pub cpu: Option<Amount>,
    /// Memory request and limit. Absent: those of the job.
    pub memory: Option<Amount>,
    /// Number of GPUs. Absent: the number of the job.
    pub gpus: Option<u32>,
    /// Bounds of a replica's batch. Absent: those of the job.
    pub batch: Option<BatchBounds>,
    /// The program and its arguments. Empty: Python with the job's script and arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The pod into which the agent is copied. Absent: Muster itself defines the pod.
    pub template: Option<Template>,
}

/// A pod template for a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// The name of the container that runs the script.
    pub container: String,
    /// The port of TensorFlow's server in the pod; default 1234.
    #[serde(default = "tensorflow_port", skip_serializing_if = "is_tensorflow_port")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub tf_port: u16,
    /// A PodTemplateSpec of core/v1: `metadata` and `spec`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub pod: Value,
}

fn tensorflow_port() -> u16 {
    TENSORFLOW_PORT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_tensorflow_port(port: &u16) -> bool {
    *port == TENSORFLOW_PORT
}

/// Why the variables of a template are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongVariable {
    /// The variables are not a list of objects with names.
    #[error("env must be a list of objects with name and value")]
    NoList,
    /// A value is not a string.
    #[error("env[{0}].value must be a string")]
    NoText(String),
    /// A value, or all values together, are longer than Linux passes to a program.
    #[error("env[{0}].value is too long after $(NAME) is replaced, or all values together are too long")]
    TooLong(String),
}

impl Template {
    /// The variables that the script's container sets, without invalid and reserved names, and without values that come
    /// from the cluster. As in Kubernetes, `$(NAME)` becomes the value of an earlier variable. A job that an earlier
    /// version has accepted may have wrong variables, which are left out.
    pub fn variables(&self) -> Vec<(&str, String)> {
        self.checked_variables().into_iter().filter_map(Result::ok).collect()
    }

    /// The number of GPUs that the script's container asks for; `None` if it asks for none.
    pub(crate) fn gpus(&self) -> Option<u32> {
        let limits = self.run_container()?.pointer("/resources/limits")?.as_object()?;
        let amount = |amount: &Value| match amount.as_str() {
            Some(text) => text.parse().ok(),
            None => amount.as_u64().and_then(|number| u32::try_from(number).ok()),
        };
        limits
            .iter()
            .filter(|(name, _)| is_gpu(name))
            .filter_map(|(_, limit)| amount(limit))
            .reduce(u32::saturating_add)
    }

    /// The container that runs the script.
    fn run_container(&self) -> Option<&Value> {
        let containers = self.pod.pointer("/spec/containers").and_then(Value::as_array)?;
        containers.iter().find(|one| one.get("name").and_then(Value::as_str) == Some(&self.container))
    }

    /// Checks the variables of a new job.
    pub(crate) fn check_variables(&self) -> Result<(), WrongVariable> {
        self.checked_variables().into_iter().try_for_each(|variable| variable.map(drop))
    }

    fn checked_variables(&self) -> Vec<Result<(&str, String), WrongVariable>> {
        let mut earlier = EarlierVariables::default();
        match self.listed_variables() {
            Ok(listed) => listed.iter().filter_map(|variable| earlier.take(variable).transpose()).collect(),
            Err(wrong) => vec![Err(wrong)],
        }
    }

    /// The field `env` of the script's container.
    fn listed_variables(&self) -> Result<&[Value], WrongVariable> {
        match self.run_container().and_then(|run| run.get("env")) {
            None | Some(Value::Null) => Ok(&[]),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => Err(WrongVariable::NoList),
        }
    }
}

/// Whether a resource of Kubernetes is a GPU or a similar device: `nvidia.com/gpu`, `amd.com/gpu`, `google.com/tpu`,
/// `gpu.intel.com/i915`, `habana.ai/gaudi`, `nvidia.com/mig-1g.10gb` and others of these forms.
fn is_gpu(resource: &str) -> bool {
    let (vendor, device) = resource.split_once('/').unwrap_or(("", resource));
    ["gpu", "tpu", "gaudi"].contains(&device) || vendor == "gpu.intel.com" || device.starts_with("mig-")
}

/// The variables of a template before the next one.
#[derive(Default)]
struct EarlierVariables<'t> {
    values: BTreeMap<&'t [u8], Vec<u8>>,
    /// Bytes of all values.
    total: usize,
}

impl<'t> EarlierVariables<'t> {
    /// Takes the next variable. `None` if its value comes from the cluster, or if a script does not get it.
    fn take(&mut self, variable: &'t Value) -> Result<Option<(&'t str, String)>, WrongVariable> {
        let name = variable.get("name").and_then(Value::as_str).ok_or(WrongVariable::NoList)?;
        let value = match (variable.get("value"), variable.get("valueFrom")) {
            (_, Some(from)) if !from.is_null() => return Ok(None),
            (None | Some(Value::Null), _) => "",
            (Some(Value::String(value)), _) => value,
            (Some(_), _) => return Err(WrongVariable::NoText(name.to_owned())),
        };
        let value_of = |name: &[u8]| self.values.get(name).map(Vec::as_slice);
        let value = expanded(value.as_bytes(), value_of).filter(|value| self.total + value.len() <= TOTAL_LIMIT);
        let value = value.ok_or_else(|| WrongVariable::TooLong(name.to_owned()))?;
        self.total += value.len();
        let is_usable = name.parse::<EnvName>().is_ok_and(|name| !name.is_reserved());
        let usable = is_usable.then(|| (name, String::from_utf8_lossy(&value).into_owned()));
        self.values.insert(name.as_bytes(), value);
        Ok(usable)
    }
}

impl Group {
    /// A group whose pods do not differ from the job's other pods.
    pub fn new(role: Role, count: u32) -> Self {
        Self { role, count, cpu: None, memory: None, gpus: None, batch: None, command: vec![], template: None }
    }

    /// Whether the group's replicas run the job's script.
    pub fn runs_script(&self) -> bool {
        self.command.is_empty()
    }
}

/// The number of replicas in the groups of this role. `None` if the role has no groups.
pub(crate) fn count(groups: &[Group], role: Role) -> Option<u32> {
    groups.iter().filter(|group| group.role == role).map(|group| group.count).reduce(u32::saturating_add)
}
