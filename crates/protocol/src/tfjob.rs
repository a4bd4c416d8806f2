//! The messages about TFJobs, the jobs of Kubeflow's training operator. Clients send TFJobs as text, and the master
//! parses them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::code::{CodeId, ScriptPath};
use crate::env::EnvName;
use crate::image::Entrypoint;
use crate::origin::Warning;
use crate::patch::JobPatch;
use crate::view::JobView;

/// The name of the container that runs the script.
pub const TFJOB_CONTAINER: &str = "tensorflow";
/// The API group of TFJobs.
pub const TFJOB_GROUP: &str = "kubeflow.org";
/// The kind of a TFJob object.
pub const TFJOB_KIND: &str = "TFJob";
/// The API group of the first version of TFJobs, tensorflow.org/v1alpha1.
pub const FIRST_TFJOB_GROUP: &str = "tensorflow.org";
/// The kind of a TFJob object in the first version.
pub const FIRST_TFJOB_KIND: &str = "TfJob";

/// The body of `POST /v1/tfjobs` and `POST /v1/dry-runs/tfjobs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TfJobRequest {
    /// One TFJob as YAML or JSON.
    pub document: String,
    /// The program that each image runs, by the image's name in the document. Needed for containers without `command`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub entrypoints: BTreeMap<String, Entrypoint>,
    /// What the caller adds to the document.
    #[serde(default)]
    pub options: TfJobOptions,
}

/// What a caller adds to a TFJob.
#[serde_with::apply(_ => #[serde(skip_serializing_if = "crate::is_default")])]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TfJobOptions {
    /// The namespace, instead of the namespace in the document.
    pub namespace: Option<String>,
    /// Whether containers may run as root.
    pub allow_root: bool,
    /// Further variables for every replica.
    pub env: BTreeMap<EnvName, String>,
    /// Variables that are allowed although they make a program load or run other code.
    pub allow_env: BTreeSet<EnvName>,
    /// Maximum restarts, instead of `backoffLimit`.
    pub max_restarts: Option<u32>,
    /// How long an evaluator may go on after the training has succeeded. The default is that of other jobs.
    pub evaluator_grace_seconds: Option<u32>,
    /// Absolute path of the folder in which scripts run, if pods are processes.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^/"))]
    pub work_dir: Option<PathBuf>,
    /// The code that the job brings, if pods are containers. The master must already have this code.
    pub code: Option<CodeId>,
    /// The path of the script in `code`.
    pub script: Option<ScriptPath>,
}

/// The answer of `POST /v1/tfjobs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TfJobAnswer {
    /// The job.
    pub job: JobView,
    /// How the TFJob changes its job, if this job was on record before.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub change: JobPatch,
    /// The fields that have another meaning in Muster, or no effect.
    pub warnings: Vec<Warning>,
}

/// The answer of `GET /v1/tfjobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TfJobList {
    /// All TFJobs, ordered by name, each as an object of kubeflow.org with its status.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub items: Vec<Value>,
}
