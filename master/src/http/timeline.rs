//! `/v1/jobs/{name}/timeline`: when a job reached each step, and how its time was spent.

use axum::Json;
use axum::extract::State;
use protocol::ids::JobName;
use protocol::routes;
use protocol::timeline::Timeline;
use tokio::task::spawn_blocking;

use super::AppState;
use super::openapi::NoSuchJob;
use super::request::FoundJob;

/// Shows when each start of a job's gang reached each step, and when each replica did. Also shows why each start began,
/// and how the time of the job was spent. The timeline is in the master's memory: after a takeover, it has only what
/// the job's record and its agents report. The timeline of a job that has ended is also in the history.
#[utoipa::path(
    get,
    path = routes::JOB_TIMELINE,
    params(("name" = JobName, Path, description = "The job")),
    responses((status = 200, description = "The timeline", body = Timeline), NoSuchJob),
)]
pub(super) async fn timeline(State(state): State<AppState>, FoundJob(job): FoundJob) -> Json<Timeline> {
    let view = job.view.borrow().clone();
    let timeline = job.kept.timeline.shown(&view, state.jobs.now());
    if !timeline.starts.is_empty() || view.result.is_none() {
        return Json(timeline);
    }
    // The job ended before this master began. Without its file, the rest of the timeline is still useful.
    let history = state.jobs.history();
    let past = spawn_blocking(move || history.read(&view.uid).ok().flatten()).await;
    Json(past.ok().flatten().map_or(timeline, |past| past.timeline))
}
