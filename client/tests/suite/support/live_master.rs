//! A master whose jobs change while they are watched. Its log streams end with the job, as those of a real master do.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{StreamExt, stream};
use protocol::error::{ErrorCode, PROBLEM_JSON, Problem};
use protocol::history::PastJob;
use protocol::output::LogLine;
use protocol::view::{JobSummary, JobView};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::serve_aside;

/// The token that the master wants.
pub(crate) const TOKEN: &str = "s3cret-t0ken-of-the-master";

/// What the master knows.
#[derive(Clone, Default)]
pub(crate) struct Jobs {
    pub(crate) views: Vec<JobView>,
    /// The output of the first job.
    pub(crate) lines: Vec<LogLine>,
    /// The reports of the first job.
    pub(crate) series: Option<Value>,
    /// The history.
    pub(crate) past: Vec<PastJob>,
    /// How often the jobs have changed.
    pub(crate) changes: u64,
}

/// A request that the master has received.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// Method, path and query.
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// A running master. It ends with the test's process.
pub(crate) struct LiveMaster {
    pub(crate) url: String,
    shared: Arc<Shared>,
}

struct Shared {
    jobs: watch::Sender<Jobs>,
    received: Mutex<Vec<Received>>,
}

impl LiveMaster {
    pub(crate) fn start(jobs: Jobs) -> Self {
        let shared = Arc::new(Shared { jobs: watch::Sender::new(jobs), received: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        listener.set_nonblocking(true).unwrap();
        let routes = Router::new()
            .route("/v1/jobs", get(list).post(submit))
            .route("/v1/history", get(history))
            .route("/v1/history/{uid}", get(past_job))
            .route("/v1/jobs/{name}", get(view).patch(accept).delete(accept))
            .route("/v1/jobs/{name}/{part}", get(part).post(accept))
            .layer(axum::middleware::from_fn_with_state(Arc::clone(&shared), receive))
            .with_state(Arc::clone(&shared));
        serve_aside(|| tokio::net::TcpListener::from_std(listener).unwrap(), routes);
        Self { url, shared }
    }

    /// Changes the jobs. Each view gets the next number.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Jobs)) {
        self.shared.jobs.send_modify(|jobs| {
            change(jobs);
            jobs.changes += 1;
            jobs.views.iter_mut().for_each(|view| view.seq += 1);
        });
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// The number of requests that begin like this.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.received().iter().filter(|received| received.line.starts_with(line)).count()
    }
}

async fn receive(State(shared): State<Arc<Shared>>, request: Request, next: axum::middleware::Next) -> Response {
    let (head, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let line = format!("{} {}", head.method, head.uri);
    let body = String::from_utf8(bytes.to_vec()).unwrap();
    let is_allowed = head.headers.get(header::AUTHORIZATION).is_some_and(|it| it == &format!("Bearer {TOKEN}"));
    shared.received.lock().unwrap().push(Received { line, headers: head.headers.clone(), body: body.clone() });
    if !is_allowed {
        return problem(401, ErrorCode::Unauthorized, "the token is missing or wrong");
    }
    next.run(Request::from_parts(head, Body::from(body))).await
}

#[derive(Deserialize)]
struct Wanted {
    after: Option<u64>,
    wait: Option<u64>,
    #[serde(default)]
    follow: bool,
    from: Option<String>,
    replica: Option<String>,
}

async fn list(State(shared): State<Arc<Shared>>, Query(wanted): Query<Wanted>) -> Response {
    let mut jobs = shared.jobs.subscribe();
    let seq = |jobs: &Jobs| 1 + jobs.changes;
    let wait = Duration::from_secs(wanted.wait.unwrap_or(0));
    let _ = tokio::time::timeout(wait, jobs.wait_for(|jobs| Some(seq(jobs)) != wanted.after)).await;
    let (seq, views) = (seq(&jobs.borrow()), jobs.borrow().views.clone());
    let jobs: Vec<JobSummary> = views.iter().map(JobView::summary).collect();
    axum::Json(json!({"seq": seq, "jobs": jobs})).into_response()
}

/// Accepts a job.
async fn submit(axum::Json(spec): axum::Json<Value>) -> Response {
    let view = super::views::running(spec["name"].as_str().unwrap());
    (StatusCode::CREATED, axum::Json(view)).into_response()
}

async fn history(State(shared): State<Arc<Shared>>) -> Response {
    let jobs: Vec<JobSummary> = shared.jobs.borrow().past.iter().map(|past| past.view.summary()).collect();
    axum::Json(json!({"jobs": jobs})).into_response()
}

async fn past_job(State(shared): State<Arc<Shared>>, Path(uid): Path<String>) -> Response {
    let found = shared.jobs.borrow().past.iter().find(|past| past.view.uid == uid).cloned();
    found.map_or_else(|| unknown(&uid), |past| axum::Json(past).into_response())
}

async fn view(State(shared): State<Arc<Shared>>, Path(name): Path<String>, Query(wanted): Query<Wanted>) -> Response {
    let mut jobs = shared.jobs.subscribe();
    let find = |jobs: &Jobs| jobs.views.iter().find(|view| view.name.as_str() == name).cloned();
    let is_news = |jobs: &Jobs| find(jobs).is_none_or(|view| Some(view.seq) != wanted.after);
    let wait = Duration::from_secs(wanted.wait.unwrap_or(0));
    let _ = tokio::time::timeout(wait, jobs.wait_for(is_news)).await;
    let found = find(&jobs.borrow());
    found.map_or_else(|| unknown(&name), |view| axum::Json(view).into_response())
}

async fn part(
    State(shared): State<Arc<Shared>>,
    Path((name, part)): Path<(String, String)>,
    Query(wanted): Query<Wanted>,
) -> Response {
    match part.as_str() {
        "series" if wanted.after.is_some() => axum::Json(json!({"replicas": []})).into_response(),
        "series" => {
            let series = shared.jobs.borrow().series.clone();
            axum::Json(series.unwrap_or(json!({"replicas": []}))).into_response()
        }
        "timeline" => timeline(&shared, &name),
        "logs" => logs(&shared, &wanted),
        _ => unknown(&name),
    }
}

/// A job of one start, which ended with the newest failure.
fn timeline(shared: &Shared, name: &str) -> Response {
    let jobs = shared.jobs.borrow();
    let Some(view) = jobs.views.iter().find(|view| view.name.as_str() == name) else { return unknown(name) };
    let failure = view.restarts.failed_starts.last().map(|start| &start.failure);
    let ending = failure.map(|failure| json!({"how": "failed", "failure": failure}));
    let start = json!({
        "generation": "1.1", "workers": 2, "cause": {"cause": "first"}, "began": 1_000, "stopped": failure.map(|_| 5_800),
        "ending": ending,
    });
    let timeline = json!({
        "name": name, "uid": view.uid, "state": view.state, "now": 9_000, "accepted": 1_000, "starts": [start],
        "replicas": [], "failed_replicas": [], "spent": {},
    });
    axum::Json(timeline).into_response()
}

fn logs(shared: &Shared, wanted: &Wanted) -> Response {
    let from: Vec<(String, u64)> = wanted
        .from
        .iter()
        .flat_map(|from| from.split(','))
        .filter_map(|pair| {
            let (name, offset) = pair.split_once(':')?;
            Some((name.to_owned(), offset.parse().ok()?))
        })
        .collect();
    let begin = move |line: &LogLine| {
        from.iter().all(|(name, offset)| *name != line.replica.to_string() || line.offset > *offset)
    };
    let replica = wanted.replica.clone();
    let is_wanted =
        move |line: &LogLine| begin(line) && replica.as_ref().is_none_or(|name| *name == line.replica.to_string());
    let text = |line: &LogLine| serde_json::to_string(line).unwrap() + "\n";
    let media = [(header::CONTENT_TYPE, "application/x-ndjson")];
    let jobs = shared.jobs.subscribe();
    if !wanted.follow {
        let body: String = jobs.borrow().lines.iter().filter(|line| is_wanted(line)).map(text).collect();
        return (media, body).into_response();
    }
    let lines = stream::unfold((jobs, 0), move |(mut jobs, sent)| async move {
        let changed =
            jobs.wait_for(|jobs| jobs.lines.len() > sent || jobs.views.iter().all(|view| view.result.is_some())).await;
        let new: Vec<LogLine> = changed.ok()?.lines.get(sent..)?.to_vec();
        if new.is_empty() { None } else { Some((new.clone(), (jobs, sent + new.len()))) }
    });
    let bytes = lines
        .map(move |new| Ok::<_, Infallible>(new.iter().filter(|line| is_wanted(line)).map(text).collect::<String>()));
    (media, Body::from_stream(bytes)).into_response()
}

/// Accepts a change, and changes nothing.
async fn accept(State(shared): State<Arc<Shared>>, method: Method) -> Response {
    match method {
        Method::PATCH => axum::Json(shared.jobs.borrow().views[0].clone()).into_response(),
        _ => StatusCode::ACCEPTED.into_response(),
    }
}

fn unknown(name: &str) -> Response {
    problem(404, ErrorCode::UnknownJob, &format!("there is no job \"{name}\""))
}

fn problem(status: u16, code: ErrorCode, detail: &str) -> Response {
    let body = serde_json::to_vec(&Problem { status, code, detail: detail.to_owned() }).unwrap();
    (StatusCode::from_u16(status).unwrap(), [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response()
}
