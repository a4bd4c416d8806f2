//! `/v1/jobs/{name}/series`: what the scripts of a job have reported, and what its runs have used, over time.

use axum::Json;
use axum::extract::State;
use protocol::ids::{JobName, UnixMillis};
use protocol::progress::JobSeries;
use protocol::routes;
use serde::Deserialize;
use tracing::warn;

use super::AppState;
use super::history::in_history;
use super::openapi::{BadQuery, NoSuchJob};
use super::request::{Asked, FoundJob};
use crate::error_chain::error_chain;
use crate::host::clock::wall_clock;
use crate::logs::newest;

/// The part of the series to send.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SeriesQuery {
    /// Only points that the master has added later than this, in milliseconds since the Unix epoch. To get each point
    /// only once, pass the `until` of the previous answer.
    after: Option<u64>,
    /// Only the newest points of each replica: this many with a report of the script, and this many that have only
    /// processor time and memory.
    tail: Option<u64>,
}

/// Shows what the scripts have reported with `muster.py`: steps, times, and values such as the loss. Also shows the
/// processor time and the memory of each run. If the job has `metrics`, also shows the numbers that the master has read
/// from the output of the first replica that trains. One request reads at most the newest 4 MiB, for at most 5 s. The
/// master asks each agent every 5 to 30 seconds: more seldom the more replicas there are, and more often while it
/// adjusts batch sizes to measured times. For each replica, the master keeps at most 256 points, spread over the whole
/// job, and also the newest point. A new master begins without points. The points of a job that has ended come from its
/// history. After the job is deleted, only `GET /v1/history/{uid}` has them.
#[utoipa::path(
    get,
    path = routes::JOB_SERIES,
    params(("name" = JobName, Path, description = "The job"), SeriesQuery),
    responses((status = 200, description = "The points", body = JobSeries), BadQuery, NoSuchJob),
)]
pub(super) async fn series(
    State(state): State<AppState>,
    Asked(SeriesQuery { after, tail }): Asked<SeriesQuery>,
    FoundJob(job): FoundJob,
) -> Json<JobSeries> {
    let view = job.view.borrow().clone();
    let tail = tail.map(|tail| usize::try_from(tail).unwrap_or(usize::MAX));
    if job.kept.series.is_in_history() {
        return Json(past_series(&state, view.uid, after.map(UnixMillis), tail).await);
    }
    if let Err(error) = job.kept.series.read_metrics(&view, &job.kept.logs, wall_clock()).await {
        warn!(job = %view.name, error = error_chain(&error), "cannot read metrics from a job's output");
    }
    Json(job.kept.series.shown(after.map(UnixMillis), tail))
}

/// The points of a job that has ended. Empty if the history no longer has the job.
async fn past_series(state: &AppState, uid: String, after: Option<UnixMillis>, tail: Option<usize>) -> JobSeries {
    let read = in_history(state, move |history| history.read(&uid)).await;
    let past = read.inspect_err(|error| warn!(%error, "cannot read a job's series in the history")).ok().flatten();
    let mut series = past.map(|past| past.series).unwrap_or_default();
    for of in &mut series.replicas {
        // The history does not say when a point was added. So use the point's own time. For most points, this is the
        // time at which the point was added.
        let mut points = std::mem::take(&mut of.points);
        points.retain(|point| after.is_none_or(|after| point.at > after));
        of.points = newest(points, tail);
    }
    series
}
