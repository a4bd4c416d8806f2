//! What a client asks for before it submits a job: the kind of back end, and the agent's program to add to an image.

use std::path::PathBuf;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use launchers::tfjob::Place;
use protocol::error::ErrorCode;
use protocol::master::{BackendKind, MasterView};
use protocol::routes;
use tracing::warn;

use super::AppState;
use super::error::ApiError;
use super::openapi::Octets;

/// The properties of this master.
#[derive(Debug)]
pub struct About {
    /// The kind of the master's back end.
    pub backend: BackendKind,
    /// Where the replicas of jobs run.
    pub place: Place,
    /// The path of the agent's program, if the master has one.
    pub agent_binary: Option<PathBuf>,
}

/// Returns the master's version and the kind of its back end. If pods are processes, also the user of the scripts.
#[utoipa::path(get, path = routes::MASTER, responses((status = 200, description = "This master", body = MasterView)))]
pub(super) async fn master(State(state): State<AppState>) -> Json<MasterView> {
    let backend = state.about.backend;
    let uid = (backend == BackendKind::Process).then(|| rustix::process::getuid().as_raw());
    Json(MasterView { version: env!("CARGO_PKG_VERSION").to_owned(), backend, uid })
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
