//! The routes of a fake agent.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::{CONTENT_TYPE, TRAILER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use protocol::aged_output::AgedPart;
use protocol::agent::{ExitOutcome, LogBase, Membership, RunState, RunStatus};
use protocol::batching::Notice;
use protocol::code::{BlobPart, BlobReader, CodeId, Manifest, MissingBlobs, Sha256};
use protocol::ids::{Generation, UnixMillis};
use protocol::lease::{ClockMillis, Renewal};
use protocol::routes;
use protocol::stacks::Stacks;
use protocol::warm::WarmRequest;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpListener;

use super::agent::{AgentEvent, AgentKind, FakeAgent, TakesCode, stopped};

#[derive(Debug, Deserialize)]
struct OfGeneration {
    generation: Generation,
}

/// The query of `/config`.
#[derive(Debug, Deserialize)]
struct OfStart {
    generation: Generation,
    seat: Option<u32>,
    of: Option<u32>,
    start: Option<u32>,
    #[serde(default)]
    pushes: u32,
    code: Option<CodeId>,
    fence_ms: Option<u64>,
    heard_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Poll {
    after: Option<u64>,
    wait: Option<u64>,
    wait_ms: Option<u64>,
    fence_ms: Option<u64>,
    heard_ms: Option<u64>,
}

fn renewal(fence_ms: Option<u64>, heard_ms: Option<u64>) -> Option<Renewal> {
    Some(Renewal { fence: Duration::from_millis(fence_ms?), heard: ClockMillis(heard_ms?) })
}

#[derive(Debug, Deserialize)]
struct Stop {
    grace: u64,
    generation: Option<Generation>,
}

const STALE: (StatusCode, &str) = (StatusCode::PRECONDITION_FAILED, "the agent has received a newer generation");
const CONFLICT: (StatusCode, &str) = (StatusCode::CONFLICT, "the state of the run does not allow this request");
const CODE_MISSING: (StatusCode, &str) =
    (StatusCode::CONFLICT, r#"{"status": 409, "code": "code_missing", "detail": "the code is not complete here"}"#);
const GONE: (StatusCode, &str) = (StatusCode::GONE, "the agent's pod was deleted");
const DONE: (StatusCode, &str) = (StatusCode::OK, "OK");

pub(super) async fn serve(address: SocketAddr, kind: AgentKind) -> FakeAgent {
    let listener = TcpListener::bind(address).await.expect("could not listen on the loopback address");
    let agent = FakeAgent::new(listener.local_addr().expect("a listener has an address"), kind);
    let seed = Router::new().route(routes::AGENT_CONFIG, post(configure)).route(routes::AGENT_RUN, get(run));
    let router = match kind {
        AgentKind::Prototype => seed,
        AgentKind::Ours | AgentKind::OtherVersion => seed
            .route(routes::AGENT_STATUS, get(status))
            .route(routes::AGENT_LOGS, get(logs))
            .route(routes::AGENT_STOP, post(stop))
            .route(routes::AGENT_NOTICE, post(notice))
            .route(routes::AGENT_STACKS, post(stacks))
            .route(routes::AGENT_WARM, post(warm))
            .route("/code/{id}", put(offer_code).get(held_code))
            .route("/code/{id}/blobs", put(receive_code).layer(DefaultBodyLimit::disable()))
            .route(routes::AGENT_FINISH, post(finish)),
    };
    let router = router.layer(from_fn_with_state(agent.clone(), network)).with_state(agent.clone());
    let gone = agent.0.gone.clone();
    tokio::spawn(async move {
        tokio::select! {
            served = axum::serve(listener, router) => served,
            () = gone.cancelled() => Ok(()),
        }
    });
    agent
}

async fn stacks(State(agent): State<FakeAgent>, Query(OfGeneration { generation }): Query<OfGeneration>) -> Response {
    let status = agent.status();
    if (status.state, status.generation) != (RunState::Running, Some(generation)) {
        return CONFLICT.into_response();
    }
    Json(Stacks { processes: agent.history().processes }).into_response()
}

/// Passes on requests and answers. While the agent is cut off, passes on nothing.
async fn network(State(agent): State<FakeAgent>, request: Request, next: Next) -> Response {
    let mut is_cut_off = agent.0.is_cut_off.subscribe();
    let cut = async { drop(is_cut_off.wait_for(|is_cut_off| *is_cut_off).await) };
    tokio::select! {
        biased;
        () = cut => pending().await,
        response = next.run(request) => response,
    }
}

async fn configure(
    State(agent): State<FakeAgent>,
    Query(OfStart { generation, seat, of, start, pushes, code, fence_ms, heard_ms }): Query<OfStart>,
    Json(environment): Json<Value>,
) -> (StatusCode, &'static str) {
    let membership = seat.zip(of).zip(start).map(|((seat, of), start)| Membership { seat, of, start, pushes });
    let mut history = agent.history_mut();
    if agent.0.gone.is_cancelled() {
        return GONE;
    }
    if let Some(refusal) = history.refusal {
        return refusal;
    }
    if history.is_stale(generation) {
        return STALE;
    }
    if code.is_some() && agent.status().code.staged != code {
        return CODE_MISSING;
    }
    if let Some((_, held)) = history.configs.last().filter(|(held, _)| *held == generation) {
        return if *held == environment { DONE } else { CONFLICT };
    }
    if matches!(agent.status().state, RunState::Running | RunState::Stopping) {
        return CONFLICT;
    }
    renewal(fence_ms, heard_ms).into_iter().for_each(|renewal| agent.renew(renewal));
    history.configs.push((generation, environment.clone()));
    history.configured_at.push(Instant::now());
    history.note(AgentEvent::Configured(generation, environment, code));
    agent.change(|status| {
        status.state = RunState::Configured;
        status.generation = Some(generation);
        status.membership = membership;
        status.code.running = code;
        status.exit = None;
        status.helper = None;
    });
    DONE
}

/// Accepts code like an agent, but keeps only the ids of the blobs.
async fn offer_code(
    State(agent): State<FakeAgent>,
    Path(id): Path<CodeId>,
    Json(manifest): Json<Manifest>,
) -> Result<Json<MissingBlobs>, (StatusCode, &'static str)> {
    agent.until_it_takes_code(TakesCode::StallsAtOffer).await?;
    let mut history = agent.history_mut();
    history.offers += 1;
    let blobs = manifest.blobs().into_keys();
    let missing: Vec<Sha256> = blobs.filter(|blob| !history.blobs.contains(blob)).collect();
    history.manifest = Some(manifest);
    if missing.is_empty() {
        agent.change(|status| status.code.staged = Some(id));
    }
    Ok(Json(MissingBlobs { missing }))
}

async fn receive_code(
    State(agent): State<FakeAgent>,
    Path(id): Path<CodeId>,
    body: Bytes,
) -> Result<Json<MissingBlobs>, (StatusCode, &'static str)> {
    agent.until_it_takes_code(TakesCode::StallsAtBlobs).await?;
    let mut history = agent.history_mut();
    let offered = history.manifest.clone().filter(|manifest| manifest.id() == id);
    let Some(manifest) = offered else { return Err(CODE_MISSING) };
    let (mut reader, mut input) = (BlobReader::new(&manifest), body.as_ref());
    let bad = |_| (StatusCode::UNPROCESSABLE_ENTITY, "the blobs do not match the manifest");
    while let Some(part) = reader.next(&mut input).map_err(bad)? {
        if let BlobPart::End(blob) = part {
            history.blobs.push(blob);
        }
    }
    reader.finish().map_err(bad)?;
    agent.change(|status| status.code.staged = Some(id));
    Ok(Json(MissingBlobs::default()))
}

/// Sends back the content that a test has set with [`FakeAgent::hold_code`], as if this content were the requested
/// code.
async fn held_code(State(agent): State<FakeAgent>) -> Result<Vec<u8>, (StatusCode, &'static str)> {
    let mut history = agent.history_mut();
    history.reads += 1;
    history.held.clone().ok_or(CODE_MISSING)
}

/// Notes the request, but starts no warm interpreter.
async fn warm(State(agent): State<FakeAgent>, Json(request): Json<WarmRequest>) -> (StatusCode, &'static str) {
    agent.history_mut().warmed.push(request);
    DONE
}

async fn run(State(agent): State<FakeAgent>, Query(asked): Query<OfGeneration>) -> (StatusCode, &'static str) {
    let mut history = agent.history_mut();
    if agent.0.gone.is_cancelled() {
        return GONE;
    }
    if history.is_stale(asked.generation) {
        return STALE;
    }
    let status = agent.status();
    if status.generation != Some(asked.generation) {
        return CONFLICT;
    }
    if status.state == RunState::Configured || agent.0.kind == AgentKind::Prototype {
        history.starts.push(Instant::now());
        history.note(AgentEvent::Started(asked.generation));
        agent.change(|status| {
            status.state = RunState::Running;
            status.started_at = Some(UnixMillis(1));
        });
    }
    DONE
}

/// Keeps the notice for the script that the test simulates.
async fn notice(
    State(agent): State<FakeAgent>,
    Query(asked): Query<OfGeneration>,
    Json(notice): Json<Notice>,
) -> (StatusCode, &'static str) {
    let mut history = agent.history_mut();
    if agent.0.gone.is_cancelled() {
        return GONE;
    }
    if history.is_stale(asked.generation) {
        return STALE;
    }
    if agent.status().generation != Some(asked.generation) {
        return CONFLICT;
    }
    history.notices.push((asked.generation, notice));
    DONE
}

async fn status(State(agent): State<FakeAgent>, Query(poll): Query<Poll>) -> Response {
    let (mut status, mut cuts) = (agent.0.status.subscribe(), agent.0.cuts.subscribe());
    agent.0.polls.send_modify(|polls| *polls += 1);
    renewal(poll.fence_ms, poll.heard_ms).into_iter().for_each(|renewal| agent.renew(renewal));
    if let Some(after) = poll.after {
        let _waiting = (status.borrow().seq == after).then(|| Arc::clone(&agent.0.waiting_poll));
        let seconds = Duration::from_secs(poll.wait.unwrap_or(1));
        let wait = poll.wait_ms.map_or(seconds, Duration::from_millis);
        tokio::select! {
            // If nothing changes during the wait, the answer is the current status.
            _ = tokio::time::timeout(wait, status.wait_for(|status| status.seq > after)) => {}
            _ = cuts.changed() => return broken().into_response(),
        }
    }
    let log_base = Some(agent.0.log_base.borrow().map_or(LogBase::Unknown, LogBase::At));
    let now = RunStatus { clock_ms: Some(FakeAgent::clock()), log_base, ..status.borrow().clone() };
    Json(now).into_response()
}

/// Sends the output of the runs that have ended, and the rest after the end of the current run, even if the next run has
/// begun by then.
async fn logs(State(agent): State<FakeAgent>, request: HeaderMap) -> ([(HeaderName, &'static str); 3], Body) {
    let told = request.get(routes::LOG_BASE_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    agent.0.log_base.send_modify(|base| *base = base.or(told));
    let age = *agent.0.age.lock();
    let headers = [
        (HeaderName::from_static(routes::LOG_OFFSET_HEADER), "0"),
        (TRAILER, routes::LOG_COMPLETE_TRAILER),
        (CONTENT_TYPE, routes::AGED_OUTPUT),
    ];
    let cut = |left: u32| left.checked_sub(1);
    if agent.0.logs_to_cut.fetch_update(Ordering::Relaxed, Ordering::Relaxed, cut).is_ok() {
        return (headers, broken());
    }
    let ends_early = agent.0.logs_to_end.fetch_update(Ordering::Relaxed, Ordering::Relaxed, cut).is_ok();
    let part = move |bytes: &[u8]| Frame::data(Bytes::from(AgedPart { age, bytes }.to_bytes()));
    let earlier = agent.history_mut().printed;
    let first = part(&agent.0.output.borrow()[..earlier]);
    let rest = stream::once(async move {
        let _waiting = Arc::clone(&agent.0.waiting_reader);
        let mut status = agent.0.status.subscribe();
        let known = status.borrow_and_update().generation;
        let has_ended =
            |status: &RunStatus| status.state == RunState::Exited || known.is_some() && status.generation != known;
        let generation = match status.wait_for(has_ended).await {
            Ok(status) => known.or(status.generation).map(|generation| generation.to_string()),
            Err(_) => None,
        };
        let output = agent.0.output.borrow()[earlier..].to_vec();
        let sent = if ends_early { &output[..output.len() / 2] } else { &output[..] };
        let generation =
            HeaderValue::try_from(generation.unwrap_or_default()).expect("digits and a dot are a valid header value");
        let trailers = [(HeaderName::from_static(routes::LOG_COMPLETE_TRAILER), generation)];
        let end = (!ends_early).then(|| Frame::trailers(HeaderMap::from_iter(trailers)));
        stream::iter([part(sent)].into_iter().chain(end))
    });
    let frames = stream::iter([first]).chain(rest.flatten());
    (headers, Body::new(StreamBody::new(frames.map(Ok::<_, Infallible>).boxed())))
}

/// A body whose connection breaks.
fn broken() -> Body {
    let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    Body::from_stream(stream::iter([Err::<Bytes, _>(error)]))
}

async fn stop(State(agent): State<FakeAgent>, Query(stop): Query<Stop>) -> (StatusCode, &'static str) {
    let mut history = agent.history_mut();
    if agent.0.gone.is_cancelled() {
        return GONE;
    }
    if stop.generation.is_some_and(|generation| history.is_stale(generation)) {
        return STALE;
    }
    history.stops.push(Duration::from_secs(stop.grace));
    match agent.status().state {
        RunState::Running | RunState::Stopping => agent.end(&mut history, stopped(ExitOutcome::Signal(9))),
        RunState::Configured => {
            agent.end(&mut history, stopped(ExitOutcome::NotStarted("stopped before it started".to_owned())));
        }
        RunState::Idle | RunState::Exited => return DONE,
    }
    (StatusCode::ACCEPTED, "OK")
}

async fn finish(State(agent): State<FakeAgent>) -> (StatusCode, &'static str) {
    let _history = agent.history_mut();
    if matches!(agent.status().state, RunState::Running | RunState::Stopping) {
        return CONFLICT;
    }
    if !agent.0.stays.load(Ordering::Relaxed) {
        agent.0.finished.cancel();
    }
    DONE
}
