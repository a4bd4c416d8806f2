//! `/v1/jobs`: submits, lists, shows, changes, cancels and deletes jobs.

use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use launchers::template;
use protocol::deletion::Deletion;
use protocol::ids::JobName;
use protocol::job::{JobRequest, JobSpec};
use protocol::origin::Warning;
use protocol::patch::JobPatch;
use protocol::routes::{self, LONG_POLL_MAX_SECONDS};
use protocol::view::{JobList, JobView};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;

use super::AppState;
use super::error::ApiError;
use super::openapi::{BadBody, BadQuery, Down, NoSuchJob};
use super::request::{Asked, FoundJob, NamedJob, parsed_body};
use crate::registry::{JobsError, Submitted};
use crate::store::Wish;

/// Time for further changes after the first change of a list, so that one answer has them all.
const LIST_PAUSE: Duration = Duration::from_millis(100);

/// The condition of a long poll.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PollQuery {
    /// Answer when `seq` differs from this number. Each master counts `seq` anew.
    after: Option<u64>,
    /// Answer after this many seconds at the latest. The maximum and the default are 60.
    wait: Option<u64>,
}

/// The job that a request is about.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// The uid of the job. If another job has the name by now, the answer is 404.
    uid: Option<String>,
}

/// No parameters. A parameter may change the meaning of a submit in another version of the master. So this check
/// refuses every parameter, and ignores none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

/// Submits a job. The answer comes when the job is on record, before its start. A repeated submit changes nothing.
/// `POST /v1/dry-runs/jobs` only checks a job.
#[utoipa::path(
    post,
    path = routes::JOBS,
    request_body(content = JobRequest, description = "At most 4 MiB, within 10 seconds"),
    responses(
        (status = 201, description = "The job is on record", body = JobView),
        (status = 200, description = "This job was already on record", body = JobView),
        (status = 409, description = "Another job has this name, the record of this name cannot be read, or the \
            job's code is missing"),
        (status = 422, description = "The job is refused"),
        BadQuery,
        BadBody,
        Down,
    ),
)]
pub(super) async fn submit(
    State(state): State<AppState>,
    Asked(NoQuery {}): Asked<NoQuery>,
    request: Request,
) -> Result<(StatusCode, Json<JobView>), ApiError> {
    let (spec, warnings) = job_in(request).await?;
    let (status, view) = accepted(state.jobs.requests.submit(spec).await?);
    let warnings = warnings.into_iter().chain(state.jobs.code_keeper.code_warning(view.code)).collect();
    Ok((status, Json(JobView { warnings, ..view })))
}

/// The job in the body, and the warnings about its fields.
pub(super) async fn job_in(request: Request) -> Result<(JobSpec, Vec<Warning>), ApiError> {
    let request: JobRequest = parsed_body(request, "a job").await?;
    let spec = JobSpec::try_from(request)?;
    let warnings = template::warnings(&spec);
    Ok((spec, warnings))
}

/// The job of a submit, and 201 for a new job or 200 for a job that was already submitted.
pub(super) fn accepted(submitted: Submitted) -> (StatusCode, JobView) {
    let (status, handle) = match submitted {
        Submitted::Created(handle) => (StatusCode::CREATED, handle),
        Submitted::Existing(handle) => (StatusCode::OK, handle),
    };
    let view = handle.view.borrow().clone();
    (status, view)
}

impl PollQuery {
    /// With `after`, waits until the number in `seq` differs from `after`, until the wait is over, or until the master
    /// ends. Returns whether the number has changed.
    async fn changed<T>(&self, state: &AppState, seq: &mut watch::Receiver<T>, number: impl Fn(&T) -> u64) -> bool {
        let Some(after) = self.after else { return false };
        let wait = Duration::from_secs(self.wait.unwrap_or(LONG_POLL_MAX_SECONDS).min(LONG_POLL_MAX_SECONDS));
        tokio::select! {
            // The caller gets the present state in any case, even if the wait failed because the job was deleted.
            change = timeout(wait, seq.wait_for(|now| number(now) != after)) => matches!(change, Ok(Ok(_))),
            () = state.end.cancelled() => false,
        }
    }
}

/// Lists all jobs, in the order of their names. With `after`, this is a long poll: the answer comes when a job has
/// changed, or the wait ends. `GET /v1/jobs/{name}` shows all details of a job.
#[utoipa::path(
    get,
    path = routes::JOBS,
    params(PollQuery),
    responses((status = 200, description = "All jobs", body = JobList), BadQuery),
)]
pub(super) async fn list(State(state): State<AppState>, Asked(poll): Asked<PollQuery>) -> Json<JobList> {
    if poll.changed(&state, &mut state.jobs.table.list_seq(), |seq| *seq).await {
        let _ = timeout(LIST_PAUSE, state.end.cancelled()).await;
    }
    Json(state.jobs.table.job_list())
}

/// Shows one job. With `after`, this is a long poll: the answer comes when the job has changed, or the wait ends.
#[utoipa::path(
    get,
    path = routes::JOB,
    params(("name" = JobName, Path, description = "The job"), PollQuery),
    responses((status = 200, description = "The job as it is now", body = JobView), BadQuery, NoSuchJob),
)]
pub(super) async fn show(
    State(state): State<AppState>,
    Asked(poll): Asked<PollQuery>,
    FoundJob(job): FoundJob,
) -> Json<JobView> {
    let mut view = job.view;
    poll.changed(&state, &mut view, |view| view.seq).await;
    let view = view.borrow().clone();
    let warnings = state.jobs.code_keeper.code_warning(view.code).into_iter().collect();
    Json(JobView { warnings, ..view })
}

/// Changes how many workers an elastic job may have, suspends or resumes a job, or gives a job new code. The change
/// takes effect after the answer.
#[utoipa::path(
    patch,
    path = routes::JOB,
    params(("name" = JobName, Path, description = "The job")),
    request_body(content = JobPatch, description = "At most 4 MiB, within 10 seconds"),
    responses(
        (status = 200, description = "The job with its new number of workers and its new code. Its state may still be \
            the old state", body = JobView),
        (status = 409, description = "The job has ended, is not elastic, or cannot receive new code. Or the new code \
            is missing, an agent did not accept it, or the record cannot be read"),
        (status = 422, description = "The body is not a valid change, the new code lacks the script, or the back end \
            or the store refuses the changed job"),
        BadBody,
        NoSuchJob,
        Down,
    ),
)]
pub(super) async fn patch(
    State(state): State<AppState>,
    NamedJob(name): NamedJob,
    request: Request,
) -> Result<Json<JobView>, ApiError> {
    let patch: JobPatch = parsed_body(request, "a change of a job").await?;
    let record = state.jobs.requests.patch(&name, patch).await?;
    let handle = state.jobs.table.find(&name).ok_or(JobsError::Slow(name))?;
    // The driver reads the change from the record a moment later, so its view may still have the old values.
    let view = handle.view.borrow().clone();
    let (workers, code, pushes) = (record.workers(), record.code(), record.pushes);
    let warnings = state.jobs.code_keeper.code_warning(code).into_iter().collect();
    Ok(Json(JobView { workers, code, pushes, warnings, ..view }))
}

/// Cancels a job, and keeps its record and output. A job that has ended stays as it is.
#[utoipa::path(
    post,
    path = routes::JOB_CANCEL,
    params(("name" = JobName, Path, description = "The job")),
    responses(
        (status = 202, description = "The job is being stopped"),
        (status = 409, description = "The record is unreadable, or another version of the master wrote it"),
        (status = 422, description = "The store refuses the change, for example by an admission policy"),
        NoSuchJob,
        Down,
    ),
)]
pub(super) async fn cancel(State(state): State<AppState>, NamedJob(name): NamedJob) -> Result<StatusCode, ApiError> {
    state.jobs.requests.wish(&name, Wish::Cancel).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Ends a job, and deletes its record and output.
#[utoipa::path(
    delete,
    path = routes::JOB,
    params(("name" = JobName, Path, description = "The job"), Which),
    responses(
        (status = 202, description = "The job is being stopped and deleted; afterwards its name is unknown",
            body = Deletion),
        (status = 409, description = "The store's object for this name is not a record, or another version of the \
            master wrote the record"),
        (status = 422, description = "The store refuses the change, for example by an admission policy"),
        BadQuery,
        NoSuchJob,
        Down,
    ),
)]
pub(super) async fn delete(
    State(state): State<AppState>,
    Asked(Which { uid }): Asked<Which>,
    NamedJob(name): NamedJob,
) -> Result<(StatusCode, Json<Deletion>), ApiError> {
    let deletion = state.jobs.requests.delete(&name, uid.as_deref()).await?;
    Ok((StatusCode::ACCEPTED, Json(deletion)))
}
