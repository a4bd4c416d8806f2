//! `/v1/tfjobs`: reads TFJobs, and shows jobs as TFJobs.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use launchers::kubeflow;
use launchers::template::Note;
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use protocol::routes;
use protocol::tfjob::{TfJobAnswer, TfJobList, TfJobRequest};
use serde_json::Value;

use super::AppState;
use super::error::ApiError;
use super::jobs::accepted;
use super::openapi::{BadBody, Down, NoSuchJob};
use super::request::{FoundJob, parsed_body};
use crate::host::clock::wall_clock;
use crate::registry::Applied;

/// Submits a TFJob as a job. A TFJob that is submitted again can suspend or resume its job
/// and, with `enableDynamicWorker`, change the number of workers. A job that has ended does not change.
#[utoipa::path(
    post,
    path = routes::TFJOBS,
    request_body(content = TfJobRequest, description = "At most 4 MiB, within 10 seconds"),
    responses(
        (status = 201, description = "The job is on record", body = TfJobAnswer),
        (status = 200, description = "This job was already on record", body = TfJobAnswer),
        (status = 409, description = "Another job has this name, the TFJob on record differs in other fields or in its \
            code, the code is missing, or the record cannot be read"),
        (status = 422, description = "The TFJob is refused"),
        BadBody,
        Down,
    ),
)]
pub(super) async fn apply(
    State(state): State<AppState>,
    request: Request,
) -> Result<(StatusCode, Json<TfJobAnswer>), ApiError> {
    let read = tfjob_in(&state, request).await?;
    let warnings = read.warnings().to_vec();
    let Applied { submitted, change } = state.jobs.requests.apply(read).await?;
    let (status, job) = accepted(submitted);
    let warnings = warnings.into_iter().chain(state.jobs.code_keeper.code_warning(job.code)).collect();
    Ok((status, Json(TfJobAnswer { job, change, warnings })))
}

/// The TFJob in the body, translated for this master.
pub(super) async fn tfjob_in(state: &AppState, request: Request) -> Result<kubeflow::Read, ApiError> {
    let request: TfJobRequest = parsed_body(request, "a TFJob with its options").await?;
    kubeflow::read(&request, &state.about.place).map_err(refused)
}

/// Lists all jobs that came from a TFJob, in the order of their names.
#[utoipa::path(get, path = routes::TFJOBS, responses((status = 200, description = "All TFJobs", body = TfJobList)))]
pub(super) async fn list(State(state): State<AppState>) -> Json<TfJobList> {
    let (namespace, now) = (state.about.place.namespace(), wall_clock());
    let items = state.jobs.table.list().iter().filter_map(|job| kubeflow::object(job, namespace, now)).collect();
    Json(TfJobList { items })
}

/// Shows a job that came from a TFJob as an object of kubeflow.org, with conditions and counts in its status.
#[utoipa::path(
    get,
    path = routes::JOB_TFJOB,
    params(("name" = JobName, Path, description = "The job")),
    responses((status = 200, description = "The TFJob", body = Object), NoSuchJob),
)]
pub(super) async fn show(State(state): State<AppState>, FoundJob(job): FoundJob) -> Result<Json<Value>, ApiError> {
    let job = job.view.borrow().clone();
    let object = kubeflow::object(&job, state.about.place.namespace(), wall_clock());
    object.map(Json).ok_or_else(|| {
        let detail = format!("job \"{}\" did not come from a TFJob", job.name);
        ApiError::new(StatusCode::NOT_FOUND, ErrorCode::UnknownJob, detail)
    })
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the notes by value")]
fn refused(notes: Vec<Note>) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadTfJob, kubeflow::refusal(&notes))
}
