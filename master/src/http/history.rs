//! `/v1/history`: the jobs that have ended, also those whose records are deleted.

use std::io;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use history::History;
use protocol::error::ErrorCode;
use protocol::history::{PastJob, PastJobs};
use protocol::routes;
use tokio::task::spawn_blocking;

use super::AppState;
use super::error::ApiError;
use super::openapi::Down;

/// Lists the jobs that have ended, the newest first. The master keeps the newest 200 of them in files of its state
/// directory, also after their records are deleted.
#[utoipa::path(
    get,
    path = routes::HISTORY,
    responses((status = 200, description = "The jobs that have ended", body = PastJobs), Down),
)]
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<PastJobs>, ApiError> {
    read(&state, |history| history.list()).await.map(Json)
}

/// Shows a job that has ended: its last view, its timeline, what its scripts have reported, and the last output of the
/// replica that failed.
#[utoipa::path(
    get,
    path = routes::PAST_JOB,
    params(("uid" = String, Path, description = "The job's uid")),
    responses(
        (status = 200, description = "The job", body = PastJob),
        (status = 404, description = "The history does not have this job"),
        Down,
    ),
)]
pub(super) async fn show(
    State(state): State<AppState>,
    uid: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Json<PastJob>, ApiError> {
    let uid = uid.map(|Path(uid)| uid).unwrap_or_default();
    let job = read(&state, move |history| history.read(&uid)).await?;
    job.map(Json).ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, ErrorCode::UnknownJob, "the history does not have this job")
    })
}

async fn read<T: Send + 'static>(
    state: &AppState,
    work: impl FnOnce(History) -> io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    in_history(state, work).await.map_err(|error| ApiError::unavailable(&error))
}

/// Runs `work` on a blocking thread, because it reads the history's files.
pub(super) async fn in_history<T: Send + 'static>(
    state: &AppState,
    work: impl FnOnce(History) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let history = state.jobs.history();
    spawn_blocking(move || work(history)).await.map_err(io::Error::from).flatten()
}
