//! The launcher from whose file or command a job came. The job's pods have the labels of that launcher, and users see
//! the job in the launcher's terms.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{ReplicaId, Role};
use crate::job::JobSpec;
use crate::tfjob::Warning;

/// The label with the name of a TFJob.
const TFJOB_NAME: &str = "training.kubeflow.org/job-name";
/// The label with the type of a TFJob's replica, in lower case.
const TFJOB_REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
/// The label with the index of a TFJob's replica.
const TFJOB_REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
/// The label of the replica that leads a TFJob's training; its value is `master`.
const TFJOB_ROLE: &str = "training.kubeflow.org/job-role";
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
    /// The uid of the job's TFJob object in the cluster. `None` if a client sent the TFJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_uid: Option<String>,
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

impl JobSpec {
    /// The uid of the job's TFJob object in the cluster. `None` if there is no such object.
    pub fn object_uid(&self) -> Option<&str> {
        match &self.origin {
            Some(Origin::TfJob(tfjob)) => tfjob.object_uid.as_deref(),
            Some(Origin::Spawner { .. }) | None => None,
        }
    }

    /// A second path at which pods mount the folder with the code. Scripts of the job's launcher expect the code there.
    pub fn second_code_folder(&self) -> Option<&'static str> {
        match self.origin {
            Some(Origin::Spawner { .. }) => Some("/script"),
            Some(Origin::TfJob(_)) | None => None,
        }
    }

    /// The labels of a replica's pod, by which users of the job's launcher find the pod.
    pub fn labels_of(&self, replica: ReplicaId) -> BTreeMap<String, String> {
        let labels = match &self.origin {
            None => vec![],
            Some(Origin::Spawner { attempt }) => {
                vec![("app", format!("{}{}", replica.role, replica.index)), ("training_attempt", attempt.clone())]
            }
            Some(Origin::TfJob(tfjob)) => {
                let kind = tfjob.replica_type(replica.role).unwrap_or(replica.role.as_str());
                let leads = replica.index == 0
                    && match replica.role {
                        Role::Chief => true,
                        Role::Worker => self.chief_num == 0,
                        Role::Ps | Role::Evaluator => false,
                    };
                let role = leads.then(|| (TFJOB_ROLE, "master".to_owned()));
                let labels = [
                    (TFJOB_NAME, self.name.to_string()),
                    (TFJOB_REPLICA_TYPE, kind.to_ascii_lowercase()),
                    (TFJOB_REPLICA_INDEX, replica.index.to_string()),
                ];
                labels.into_iter().chain(role).collect()
            }
        };
        labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
