//! `/v1/jobs/{name}/logs`: the output of one replica as bytes, or the merged output of all replicas as lines of JSON.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use futures_util::{Stream, StreamExt, stream};
use protocol::error::ErrorCode;
use protocol::ids::{JobName, ReplicaId, UnixMillis};
use protocol::output::LogLine;
use protocol::routes::{self, LOG_DROPPED_HEADER, LOG_OFFSET_HEADER};
use serde::Deserialize;
use tracing::warn;

use super::AppState;
use super::error::ApiError;
use super::openapi::{BadQuery, Down, Octets};
use super::request::{Asked, FoundJob};
use crate::host::clock::wall_clock;
use crate::logs::{Reading, ReplicaLog, Wanted, added_after, lines, reader};
use crate::registry::JobHandle;

/// How far the clock of a user's machine may be ahead of the master's clock.
const CLOCKS_DIFFER_MAX_MS: u64 = 60 * 60 * 1000;

/// The part of the output to send.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogQuery {
    /// Only this replica. The default is all replicas.
    replica: Option<ReplicaId>,
    /// Begin at this byte; only for the bytes of one replica.
    offset: Option<u64>,
    /// Begin at these bytes of the replicas, such as `worker-0:123,worker-1:456`; only for lines.
    #[param(pattern = "^((chief|worker|ps|evaluator)-[0-9]+:[0-9]+(,|$))*$")]
    from: Option<String>,
    /// Begin this many lines before the end of each replica's output, unless an offset is given.
    tail: Option<u64>,
    /// Omit lines that were complete more than this many seconds ago, unless an offset is given.
    since_seconds: Option<u64>,
    /// Omit lines that were complete before this time by the master's clock, in milliseconds since the Unix epoch,
    /// unless an offset is given.
    #[param(value_type = Option<u64>)]
    since_time: Option<UnixMillis>,
    /// Also send when each line was complete; not for bytes.
    #[serde(default)]
    times: bool,
    /// Send lines of JSON; only with `replica`.
    #[serde(default)]
    lines: bool,
    /// Continue until the job has ended.
    #[serde(default)]
    follow: bool,
    /// Also show lines that are still being written, such as progress bars; only with `follow`, and not for bytes.
    #[serde(default)]
    unfinished: bool,
}

/// Sends the output that the master keeps. With `replica`, sends the bytes of one replica. Otherwise, or with `lines`,
/// sends lines, each as a line of JSON. To continue after a line, pass the line's `offset` in `from`. With
/// `unfinished`, a line that is still being written is sent at most five times a second, marked by `unfinished`. With
/// `follow`, the answer ends when the job ends. An answer with bytes also ends before a gap in the bytes.
#[utoipa::path(
    get,
    path = routes::JOB_LOGS,
    params(("name" = JobName, Path, description = "The job"), LogQuery),
    responses(
        (status = 200, description = "Output",
            content((inline(Octets) = "application/octet-stream"), (LogLine = "application/x-ndjson")),
            headers(
                ("muster-log-offset" = Option<u64>, description = "With one replica: the offset of the first byte"),
                ("muster-log-dropped" = Option<u64>, description = "With one replica: how many bytes between the \
                    requested offset and the first sent byte are no longer kept"),
            )),
        (status = 404, description = "No job has this name, or the job has no such replica"),
        BadQuery,
        Down,
    ),
)]
pub(super) async fn logs(
    State(state): State<AppState>,
    Asked(query): Asked<LogQuery>,
    FoundJob(job): FoundJob,
) -> Result<Response, ApiError> {
    let ended = state.end.cancelled_owned();
    match query.replica {
        Some(replica) if !query.lines => one(&job, replica, &query, ended).await,
        Some(_) | None => merged(&job, &query, ended).await,
    }
}

async fn one(
    job: &JobHandle,
    replica: ReplicaId,
    query: &LogQuery,
    ended: impl Future<Output = ()> + Send + 'static,
) -> Result<Response, ApiError> {
    refuse([
        (
            query.from.is_some(),
            "\"from\" is only for lines: use \"offset\" for the bytes of one replica, or add lines=true",
        ),
        (query.unfinished, "\"unfinished\" is only for lines: add lines=true"),
        (query.times, "\"times\" is only for lines: add lines=true"),
    ])?;
    let log = log_of(job, replica)?;
    let asked = start(&log, query.offset, &LogBegin::of(query, wall_clock())?).await?;
    let first = log.read(asked).await.map_err(unreadable)?.offset;
    let reading = Reading { offset: first, follow: query.follow, wanted: Wanted::Bytes, unfinished: false };
    let bytes = unbroken(log.clone(), reading).take_until(Box::pin(ended));
    let mut response = Body::from_stream(bytes).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(LOG_OFFSET_HEADER, HeaderValue::from(first));
    headers.insert(LOG_DROPPED_HEADER, HeaderValue::from(first.saturating_sub(asked)));
    Ok(response)
}

async fn merged(
    job: &JobHandle,
    query: &LogQuery,
    ended: impl Future<Output = ()> + Send + 'static,
) -> Result<Response, ApiError> {
    let lines_of_all = query.lines && query.replica.is_none();
    let unfinished_end = query.unfinished && !query.follow;
    refuse([
        (query.offset.is_some(), "\"offset\" is only for the bytes of one replica: use \"from\" with lines"),
        (lines_of_all, "\"lines\" is only for one replica: merged output always comes in lines"),
        (unfinished_end, "\"unfinished\" is only for followed output: add follow=true"),
    ])?;
    let offsets = parse_from(query.from.as_deref().unwrap_or_default())?;
    let (unfinished, follow) = (query.unfinished, query.follow);
    let wanted = if query.times { Wanted::BytesAndTimes } else { Wanted::Bytes };
    let from = move |replica: ReplicaId, log: ReplicaLog, offset: u64| {
        encoded(lines(replica, log, Reading { offset, follow, wanted, unfinished })).boxed()
    };
    let begin = LogBegin::of(query, wall_clock())?;
    let begin = async |(replica, log): (ReplicaId, ReplicaLog)| {
        let first = start(&log, offsets.get(&replica).copied(), &begin).await?;
        Ok::<_, ApiError>(from(replica, log, first))
    };
    let known = match query.replica {
        Some(replica) => vec![(replica, log_of(job, replica)?)],
        None => job.kept.logs.all(),
    };
    let ids = known.iter().map(|(id, _)| *id).collect();
    let streams = stream::select_all(try_join_all(known.into_iter().map(begin)).await?);
    let merged = if follow && query.replica.is_none() {
        let added = added_after(Arc::clone(&job.kept.logs), ids);
        let added = added.flat_map_unordered(None, move |(replica, log)| from(replica, log, 0));
        stream::select(streams, added).boxed()
    } else {
        streams.boxed()
    };
    let body = Body::from_stream(merged.take_until(Box::pin(ended)));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// The bytes up to the next gap. A gap arises if output is dropped before a slow reader has received it. The reader can
/// then send a new request for the rest. A header of the new answer contains the number of dropped bytes.
fn unbroken(log: ReplicaLog, reading: Reading) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    reader(log, reading).scan(reading.offset, |next, chunk| {
        let follows_on = chunk.as_ref().map_or(true, |chunk| chunk.offset == *next);
        *next += chunk.as_ref().map_or(0, |chunk| chunk.bytes.len() as u64);
        ready(follows_on.then(|| chunk.map(|chunk| Bytes::from(chunk.bytes))))
    })
}

/// Encodes batches of lines. Each line becomes a line of JSON.
fn encoded(
    batches: impl Stream<Item = Result<Vec<LogLine>, std::io::Error>> + Send,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    batches.map(|batch| {
        let mut text = Vec::new();
        for line in batch? {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        Ok(Bytes::from(text))
    })
}

/// Where to begin in the output of a replica for which the request gives no offset.
struct LogBegin {
    tail: Option<u64>,
    since: Option<UnixMillis>,
}

impl LogBegin {
    fn of(query: &LogQuery, now: UnixMillis) -> Result<Self, ApiError> {
        let since = match (query.since_seconds, query.since_time) {
            (Some(_), Some(_)) => return Err(bad("give either \"since_seconds\" or \"since_time\"")),
            (None, Some(time)) if time.0 > now.0.saturating_add(CLOCKS_DIFFER_MAX_MS) => {
                return Err(bad("\"since_time\" is in the future by the master's clock"));
            }
            (None, time) => time,
            (Some(seconds), None) => Some(UnixMillis(now.0.saturating_sub(seconds.saturating_mul(1000)))),
        };
        Ok(Self { tail: query.tail, since })
    }
}

/// The offset at which a replica's output begins. If both `tail` and a time are given, the later place counts.
async fn start(log: &ReplicaLog, offset: Option<u64>, begin: &LogBegin) -> Result<u64, ApiError> {
    if let Some(offset) = offset {
        return Ok(offset);
    }
    let tail = match begin.tail {
        Some(lines) => log.tail_offset(lines).await.map_err(unreadable)?,
        None => 0,
    };
    let since = match begin.since {
        Some(since) => log.offset_since(since).await.map_err(unreadable)?,
        None => 0,
    };
    Ok(tail.max(since))
}

fn log_of(job: &JobHandle, replica: ReplicaId) -> Result<ReplicaLog, ApiError> {
    job.kept.logs.of(replica).ok_or_else(|| {
        let detail = format!("job \"{}\" has no replica {replica}", job.view.borrow().name);
        ApiError::new(StatusCode::NOT_FOUND, ErrorCode::UnknownReplica, detail)
    })
}

fn parse_from(text: &str) -> Result<BTreeMap<ReplicaId, u64>, ApiError> {
    let pair = |part: &str| {
        let (replica, offset) = part.split_once(':')?;
        Some((replica.parse().ok()?, offset.parse().ok()?))
    };
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(|part| pair(part).ok_or_else(|| bad(&format!("\"{part}\" is not REPLICA:OFFSET")))).collect()
}

/// Refuses a query for the first of these reasons that applies.
fn refuse(reasons: [(bool, &str); 3]) -> Result<(), ApiError> {
    reasons.into_iter().find(|(applies, _)| *applies).map_or(Ok(()), |(_, detail)| Err(bad(detail)))
}

fn bad(detail: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, ErrorCode::BadRequest, detail)
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn unreadable(error: std::io::Error) -> ApiError {
    warn!(%error, "could not read a job's output");
    let detail = format!("could not read the job's output: {error}");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, detail)
}
