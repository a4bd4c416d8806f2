//! `/v1/jobs/{name}/stacks`: where the scripts of a job are now.

use axum::Json;
use protocol::ids::JobName;
use protocol::routes;
use protocol::stacks::JobStacks;

use super::error::ApiError;
use super::openapi::{Down, NoSuchJob};
use super::request::FoundJob;
use crate::registry::JobsError;

/// Shows the Python stacks of all replicas of the job's current start, and one sentence that says where their main
/// threads are. The master asks 64 agents of a job at once, each for at most 2 s and all for at most 15 s. It asks the
/// agents of at most 8 jobs at once. A replica without an answer has a reason instead. The request does not stop or
/// slow down the scripts.
#[utoipa::path(
    get,
    path = routes::JOB_STACKS,
    params(("name" = JobName, Path, description = "The job")),
    responses((status = 200, description = "The stacks", body = JobStacks), NoSuchJob, Down),
)]
pub(super) async fn stacks(FoundJob(job): FoundJob) -> Result<Json<JobStacks>, ApiError> {
    let name = job.view.borrow().name.clone();
    let stacks = job.stacks().await.ok_or(JobsError::NotDriven(name))?;
    Ok(Json(JobStacks::new(stacks)))
}
