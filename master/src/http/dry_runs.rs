//! `/v1/dry-runs`: checks jobs as a submit does, and creates nothing.

use axum::Json;
use axum::extract::{Request, State};
use protocol::dry_run::DryRun;
use protocol::job::JobRequest;
use protocol::routes;
use protocol::tfjob::TfJobRequest;
use serde::Deserialize;

use super::AppState;
use super::error::ApiError;
use super::jobs::job_in;
use super::openapi::{BadBody, BadQuery, Down};
use super::request::Asked;
use super::tfjobs::tfjob_in;
use crate::registry::OldJob;

/// What the caller does before the submit.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DryRunQuery {
    /// Whether the caller will delete the job that has this name at present.
    replace: bool,
}

/// Checks a job as `POST /v1/jobs` does, and creates nothing.
#[utoipa::path(
    post,
    path = routes::JOB_DRY_RUNS,
    params(DryRunQuery),
    request_body(content = JobRequest, description = "At most 4 MiB, within 10 seconds"),
    responses(
        (status = 200, description = "What a submit of this job would do", body = DryRun),
        (status = 409, description = "Another job has this name, or the record of this name cannot be read"),
        (status = 422, description = "The job is refused"),
        BadQuery,
        BadBody,
        Down,
    ),
)]
pub(super) async fn job(
    State(state): State<AppState>,
    Asked(DryRunQuery { replace }): Asked<DryRunQuery>,
    request: Request,
) -> Result<Json<DryRun>, ApiError> {
    let (spec, warnings) = job_in(request).await?;
    let old = if replace { OldJob::IsDeletedFirst } else { OldJob::Stays };
    let checked = state.jobs.requests.dry_run(&spec, old).await?;
    Ok(Json(DryRun { warnings, ..checked }))
}

/// Checks a TFJob as `POST /v1/tfjobs` does, and creates and changes nothing.
#[utoipa::path(
    post,
    path = routes::TFJOB_DRY_RUNS,
    request_body(content = TfJobRequest, description = "At most 4 MiB, within 10 seconds"),
    responses(
        (status = 200, description = "What a submit of this TFJob would do", body = DryRun),
        (status = 409, description = "Another job has this name, the TFJob on record differs in other fields or in its \
            code, or the record cannot be read"),
        (status = 422, description = "The TFJob is refused"),
        BadBody,
        Down,
    ),
)]
pub(super) async fn tfjob(State(state): State<AppState>, request: Request) -> Result<Json<DryRun>, ApiError> {
    let tfjob = tfjob_in(&state, request).await?;
    let checked = state.jobs.requests.dry_run_of_tfjob(&tfjob).await?;
    Ok(Json(DryRun { warnings: tfjob.warnings().to_vec(), ..checked }))
}
