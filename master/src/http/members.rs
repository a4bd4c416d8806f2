//! `/v1/jobs/NAME/members`: the messages of agents on bare machines.

use axum::Json;
use axum::extract::{Request, State};
use protocol::ids::JobName;
use protocol::join::{JoinAnswer, JoinRequest};
use protocol::routes;

use super::AppState;
use super::error::ApiError;
use super::openapi::{BadBody, Down, NoSuchJob};
use super::request::{NamedJob, parsed_body};

/// Gives the agent of a bare machine a place in a job, or notes that the agent leaves. The first agent that joins
/// submits the job. Repeating the message is safe. Only with --backend joined.
#[utoipa::path(
    post,
    path = routes::JOB_MEMBERS,
    params(("name" = JobName, Path, description = "The job")),
    request_body(content = JoinRequest, description = "At most 4 MiB, within 10 seconds"),
    responses(
        (status = 200, description = "The agent's place, or why it has none", body = JoinAnswer),
        (status = 409, description = "The job has ended, its rules differ from those in the message, its record cannot \
            be read, or this master creates its pods itself"),
        (status = 422, description = "The message is refused, or the master or a machine of the job cannot reach the agent"),
        BadBody,
        NoSuchJob,
        Down,
    ),
)]
pub(super) async fn join(
    State(state): State<AppState>,
    NamedJob(name): NamedJob,
    request: Request,
) -> Result<Json<JoinAnswer>, ApiError> {
    let message: JoinRequest = parsed_body(request, "the message of an agent").await?;
    Ok(Json(state.jobs.requests.join(&name, message).await?))
}
