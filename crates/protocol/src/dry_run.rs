//! The answer to a dry run of a submit, which checks a job and creates nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::origin::Warning;
use crate::patch::JobPatch;

/// What a submit would do. The answer of `POST /v1/dry-runs/jobs` and `POST /v1/dry-runs/tfjobs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DryRun {
    /// Whether the job is already on record. Then a submit creates nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_record: bool,
    /// How a TFJob would change its job, if this job is on record.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub change: JobPatch,
    /// Whether the master does not have the code that the job brings. A submit needs this code first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_code: bool,
    /// The pods that the master would create in Kubernetes, by kind. Empty if pods are processes.
    pub pods: Vec<PodsOfKind>,
    /// The fields that have another meaning in Muster, or no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

/// Pods that differ only in their names and labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PodsOfKind {
    /// The number of these pods. In an elastic job, their minimum number.
    pub count: usize,
    /// The first of these pods, with the defaults that the cluster adds.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub first: Value,
}
