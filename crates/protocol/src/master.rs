//! What a client needs to know about a master before it submits a job.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The answer of `GET /v1/master`: what a client needs to know before it submits a job.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MasterView {
    /// The master's version.
    pub version: String,
    /// The master's back end.
    pub backend: BackendKind,
    /// User id of the master, and therefore of its jobs' scripts. Only with the process back end.
    pub uid: Option<u32>,
    /// The Python of its jobs' scripts: the first `python` on the master's PATH, or else the first `python3`. Only with the
    /// process back end.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub python: Option<PathBuf>,
    /// Whether the folder in the query is the same folder here. A job of the same user can then run in it.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub same_folder: bool,
}

/// The query of `GET /v1/master`: either nothing, or a folder of the client. The numbers identify the folder under one
/// kernel, so a folder of another machine is never the same. The master answers only whether all fields are right.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct FolderQuery {
    /// Absolute path of the folder, without links.
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub folder: Option<PathBuf>,
    /// The device of the folder's file system.
    pub device: Option<u64>,
    /// The folder's inode.
    pub inode: Option<u64>,
    /// The content of [`BOOT_ID`], without the line feed.
    pub boot_id: Option<String>,
}

/// The file with the id of the running kernel. Containers of one machine share the id.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

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
