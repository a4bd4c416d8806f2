//! What a client asks for before it submits a job: the kind of back end, whether its folder is here, and the agent's
//! program to add to an image.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use launchers::kubeflow::ReplicaHost;
use protocol::error::ErrorCode;
use protocol::master::{BOOT_ID, BackendKind, FolderQuery, MasterView};
use protocol::routes;
use tokio::time::timeout;
use tracing::warn;

use super::AppState;
use super::error::ApiError;
use super::openapi::{BadQuery, Octets};
use super::request::Asked;

/// Maximum time to look at a folder, which may be on a network disk.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// The properties of this master.
#[derive(Debug)]
pub struct AboutMaster {
    /// The kind of the master's back end.
    pub backend: BackendKind,
    /// Where the replicas of jobs run.
    pub place: ReplicaHost,
    /// The path of the agent's program, if the master has one.
    pub agent_binary: Option<PathBuf>,
    /// The Python of scripts that run on this host.
    pub python: Option<PathBuf>,
}

/// Returns the master's version and the kind of its back end. If pods are processes, also the user of the scripts, and
/// whether the folder in the query is the same folder here.
#[utoipa::path(
    get,
    path = routes::MASTER,
    params(FolderQuery),
    responses((status = 200, description = "This master", body = MasterView), BadQuery),
)]
pub(super) async fn master(
    State(state): State<AppState>,
    Asked(asked): Asked<FolderQuery>,
) -> Result<Json<MasterView>, ApiError> {
    let backend = state.about.backend;
    let uid = (backend == BackendKind::Process).then(|| rustix::process::getuid().as_raw());
    let same_folder = uid.is_some() && timeout(LOOK_LIMIT, is_here(&asked)).await.unwrap_or(false);
    let python = if uid.is_some() { state.about.python.clone() } else { None };
    Ok(Json(MasterView { version: env!("CARGO_PKG_VERSION").to_owned(), backend, uid, python, same_folder }))
}

/// Whether the folder is here, with these numbers. Reads nothing in the folder.
async fn is_here(asked: &FolderQuery) -> bool {
    let FolderQuery { folder: Some(folder), device: Some(device), inode: Some(inode), boot_id: Some(boot_id) } = asked
    else {
        return false;
    };
    let kernel = tokio::fs::read_to_string(BOOT_ID).await.unwrap_or_default();
    // A client of another machine could let this master look at a path that hangs here, such as one on a network disk.
    if !folder.is_absolute() || kernel.trim() != boot_id {
        return false;
    }
    let Ok(found) = tokio::fs::symlink_metadata(folder).await else { return false };
    found.is_dir() && (found.dev(), found.ino()) == (*device, *inode)
}

/// Returns the agent's program, built for the machines of this master.
#[utoipa::path(
    get,
    path = routes::AGENT_PROGRAM,
    responses(
        (status = 200, description = "The program", body = inline(Octets), content_type = "application/octet-stream"),
        (status = 404, description = "This master has no agent program"),
    ),
)]
pub(super) async fn agent_program(State(state): State<AppState>) -> Result<impl IntoResponse, ApiError> {
    let none = || ApiError::new(StatusCode::NOT_FOUND, ErrorCode::UnknownRoute, "this master has no agent program");
    let path = state.about.agent_binary.as_ref().ok_or_else(none)?;
    let program = tokio::fs::read(path).await.map_err(|error| {
        warn!(path = %path.display(), %error, "could not read the agent's program");
        none()
    })?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], program))
}
