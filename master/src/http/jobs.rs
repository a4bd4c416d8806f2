//! `/v1/jobs`: submit, list, show, cancel, delete.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use protocol::job::{JobRequest, JobSpec};
use protocol::routes::LONG_POLL_MAX_SECONDS;
use protocol::view::{JobList, JobView};
use serde::Deserialize;
use tokio::time::timeout;

use super::AppState;
use super::error::ApiError;
use crate::jobs::{JobHandle, JobsError, Submitted};
use crate::store::Wish;

/// How long to wait for what.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Poll {
    /// Answer when the view's `seq` is another: it begins anew with each master.
    after: Option<u64>,
    /// Or after this many seconds, [`LONG_POLL_MAX_SECONDS`] at most.
    wait: Option<u64>,
}

/// Submits a job.
pub(super) async fn submit(
    State(state): State<AppState>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<JobView>), ApiError> {
    let body = body.map_err(bad_body)?;
    let request: JobRequest = serde_json::from_slice(&body).map_err(|error| {
        let detail = format!("the body is no job: {error}");
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadRequest, detail)
    })?;
    accept(&state, JobSpec::try_from(request)?).await
}

/// Submits, and shows what came of it: 201 for a new job, 200 for the same one again.
pub(super) async fn accept(state: &AppState, spec: JobSpec) -> Result<(StatusCode, Json<JobView>), ApiError> {
    let (status, handle) = match state.jobs.submit(spec).await? {
        Submitted::Created(handle) => (StatusCode::CREATED, handle),
        Submitted::Existing(handle) => (StatusCode::OK, handle),
    };
    let view = handle.view.borrow().clone();
    Ok((status, Json(view)))
}

/// Lists all jobs.
pub(super) async fn list(State(state): State<AppState>) -> Json<JobList> {
    Json(JobList { jobs: state.jobs.list() })
}

/// Shows one job; with `after`, when it has changed or the wait is over.
pub(super) async fn show(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
    poll: Result<Query<Poll>, QueryRejection>,
) -> Result<Json<JobView>, ApiError> {
    let Query(poll) = poll.map_err(bad_query)?;
    let mut view = find(&state, name)?.view;
    if let Some(after) = poll.after {
        let wait = Duration::from_secs(poll.wait.unwrap_or(LONG_POLL_MAX_SECONDS).min(LONG_POLL_MAX_SECONDS));
        let change = timeout(wait, view.wait_for(|view| view.seq != after));
        tokio::select! {
            // A wait that ends without a change answers with the view as it is; so does a job that is being forgotten.
            _ = change => {}
            () = state.end.cancelled() => {}
        }
    }
    let view = view.borrow().clone();
    Ok(Json(view))
}

/// Ends a job, and keeps its record.
pub(super) async fn cancel(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    wish(&state, name, Wish::Cancel).await
}

/// Ends a job, and forgets it.
pub(super) async fn delete(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    wish(&state, name, Wish::Delete).await
}

async fn wish(state: &AppState, name: Result<Path<String>, PathRejection>, wish: Wish) -> Result<StatusCode, ApiError> {
    let name = parse_name(name)?;
    state.jobs.wish(&name, wish).await?;
    Ok(StatusCode::ACCEPTED)
}

/// The job of this name.
pub(super) fn find(state: &AppState, name: Result<Path<String>, PathRejection>) -> Result<JobHandle, ApiError> {
    let name = parse_name(name)?;
    state.jobs.find(&name).ok_or_else(|| JobsError::Unknown(name).into())
}

/// A query that does not parse.
#[expect(clippy::needless_pass_by_value, reason = "it stands where a closure would")]
pub(super) fn bad_query(error: QueryRejection) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, ErrorCode::BadRequest, error.body_text())
}

/// A body that is too long, or broke off.
#[expect(clippy::needless_pass_by_value, reason = "it stands where a closure would")]
fn bad_body(error: BytesRejection) -> ApiError {
    let code = match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::TooLarge,
        _ => ErrorCode::BadRequest,
    };
    ApiError::new(error.status(), code, format!("the body cannot be read: {}", error.body_text()))
}

/// What is no job's name names no job.
fn parse_name(name: Result<Path<String>, PathRejection>) -> Result<JobName, ApiError> {
    let unknown = |name: &str| {
        let shown: String = name.chars().take(80).collect();
        ApiError::new(StatusCode::NOT_FOUND, ErrorCode::UnknownJob, format!("no job is named \"{shown}\""))
    };
    // The path may hold bytes that are no text.
    let Path(name) = name.map_err(|_| unknown("\u{fffd}"))?;
    name.parse().map_err(|_| unknown(&name))
}
