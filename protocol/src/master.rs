//! What a client needs to know about a master before it submits a job.

use serde::{Deserialize, Serialize};

/// The answer of `GET /v1/master`: what a client needs to know before it submits a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MasterView {
    /// The master's version.
    pub version: String,
    /// The master's back end.
    pub backend: BackendKind,
    /// User id of the master, and therefore of its jobs' scripts. Only with the process back end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// The kind of back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// Pods are processes on the master's host. The script is in a folder of this host, or the job brings it.
    Process,
    /// Pods are Kubernetes pods. The script is in their image, or the job brings it.
    Kubernetes,
    /// Pods are machines whose agents join by themselves. Each machine has its own copy of the script.
    Joined,
}
