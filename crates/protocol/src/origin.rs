//! The launcher whose file or command described a job. The job's pods have the labels of that launcher, and users see
//! the job in the launcher's terms.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::Role;
use crate::image::Entrypoint;

/// The label with the name of a TFJob.
pub(crate) const TFJOB_NAME: &str = "training.kubeflow.org/job-name";
/// The label with the type of a TFJob's replica, in lower case.
pub(crate) const TFJOB_REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
/// The label with the index of a TFJob's replica.
pub(crate) const TFJOB_REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
/// The label of the replica that leads a TFJob's training; its value is `master`.
pub(crate) const TFJOB_ROLE: &str = "training.kubeflow.org/job-role";
/// Prefix of the labels of a TFJob's pods.
pub const TFJOB_LABELS: &str = "training.kubeflow.org/";

/// A launcher whose jobs run here, and the parts of the launcher's file or command that Muster keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "launcher", rename_all = "snake_case")]
pub enum Origin {
    /// Kubeflow's training operator.
    TfJob(TfJobOrigin),
    /// tf-spawner.
    Spawner {
        /// The tag of the training, as the user typed it.
        attempt: String,
    },
}

/// A TFJob without its pod templates. The templates are in the job's groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TfJobOrigin {
    /// The TFJob's `apiVersion`, such as kubeflow.org/v1.
    pub api_version: String,
    /// The TFJob's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The TFJob's annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The TFJob's `spec`, without the templates and without `suspend`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub spec: Map<String, Value>,
    /// The fields that have another meaning in Muster, or no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// The programs of the images whose containers have no `command`, by the names of the images, as far as the master
    /// has looked them up. They are kept, because a tag may name another image later.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, Entrypoint>,
    /// The uid of the job's TFJob object in the cluster. `None` if a client sent the TFJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_uid: Option<String>,
}

/// A field that has another meaning in Muster, or no effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Warning {
    /// The path of the field, such as `spec.runPolicy.schedulingPolicy.queue`.
    pub path: String,
    /// What the field means in Muster.
    pub sentence: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.sentence)
    }
}

impl Origin {
    /// Whether the job comes from a TFJob with `enableDynamicWorker`. An edit of such a TFJob can give the job more
    /// workers.
    pub fn may_grow(&self) -> bool {
        match self {
            Self::TfJob(tfjob) => tfjob.spec.get("enableDynamicWorker") == Some(&Value::Bool(true)),
            Self::Spawner { .. } => false,
        }
    }
}

impl TfJobOrigin {
    /// The name of a role's replicas in the TFJob, such as `Master`; `None` if the TFJob has no such replicas.
    pub fn replica_type(&self, role: Role) -> Option<&str> {
        let specs = self.spec.get("tfReplicaSpecs")?.as_object()?;
        specs.keys().map(String::as_str).find(|key| role_of_type(key) == Some(role))
    }
}

/// The role of a TFJob's replica type. Case does not matter.
pub fn role_of_type(key: &str) -> Option<Role> {
    match key.to_ascii_lowercase().as_str() {
        "chief" | "master" => Some(Role::Chief),
        "worker" => Some(Role::Worker),
        "ps" => Some(Role::Ps),
        "evaluator" | "eval" => Some(Role::Evaluator),
        _ => None,
    }
}
