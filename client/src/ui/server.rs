//! The server of the page, and its routes. Everything that the guard does not admit, and every unknown path, gets 404
//! with an empty body.

use std::future::pending;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Form, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use listener::{ConnectionSeat, Limits};
use protocol::ids::{JobName, ReplicaId};
use protocol::view::JobView;
use serde::Deserialize;
use tokio::net::TcpListener;

use super::actions::{PageAction, SeenJob, run_again};
use super::feed::{Hub, Topic, from_history, is_not_found};
use super::guard::PageGuard;
use super::log_lines::Line;
use super::output::{LINES_MAX, newest};
use super::pages;
use super::parts::{Content, Filter, Part};
use super::tab::{Tab, TabOutput};
use crate::ending::error::Error;
use crate::ending::exit::Exit;

/// Headers of every answer. A browser loads nothing but the page's own files, and no other page can frame or read the
/// page. The referrer policy is not `no-referrer`, because a form would then send the origin `null`.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The header with the id of the last event. A browser sends this header when it opens a stream again.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

type Site = State<Arc<Hub>>;

/// Every program of this machine can connect. A tab has two connections at most.
const LIMITS: Limits = Limits { connections: 512, head_bytes: 64 * 1024, headers: 100, unkept: None };

/// Serves the page without end.
pub(crate) async fn serve(socket: TcpListener, guard: PageGuard, hub: Arc<Hub>) {
    let routes = TowerToHyperService::new(routes(guard, hub));
    let respond = move |request, seat: Arc<ConnectionSeat>| seat.while_answering(routes.call(request));
    listener::serve(socket, LIMITS, |_| (), respond, pending()).await;
}

/// The routes, behind the guard.
fn routes(guard: PageGuard, hub: Arc<Hub>) -> Router {
    let file = |media, text: &'static str| get(move || async move { ([(header::CONTENT_TYPE, media)], text) });
    let nowhere = async || StatusCode::NOT_FOUND;
    let at = |path: &str| format!("{}{path}", guard.prefix());
    let routes = Router::new()
        .route(&at("/"), get(list))
        .route(&at("/events"), get(events))
        .route(&at("/app.css"), file("text/css; charset=utf-8", include_str!("../../templates/app.css")))
        .route(&at("/app.js"), file("text/javascript; charset=utf-8", include_str!("../../templates/app.js")))
        .route(&at("/icon.svg"), file("image/svg+xml", include_str!("../../templates/icon.svg")))
        .route(&at("/jobs/{name}"), get(job))
        .route(&at("/jobs/{name}/{action}"), get(ask).post(act))
        .route(&at("/jobs/{name}/logs/{replica}"), get(logs))
        .route(&at("/jobs/{name}/tf-config/{replica}"), get(tf_config))
        .route(&at("/history/{uid}"), get(past_job))
        .route(&at("/history/{uid}/rerun"), get(ask_past).post(rerun_past))
        .fallback(nowhere);
    routes.with_state(hub).layer(middleware::from_fn_with_state(Arc::new(guard), check))
}

async fn check(State(guard): State<Arc<PageGuard>>, request: Request, next: Next) -> Response {
    let is_welcome = guard.admits(request.method(), request.uri(), request.headers());
    let answer = if is_welcome { next.run(request).await } else { StatusCode::NOT_FOUND.into_response() };
    // axum answers a bad path, query, form or method with these statuses, and explains why.
    let is_refused_by_axum = matches!(answer.status().as_u16(), 400 | 405 | 413 | 415 | 422);
    let mut answer = if is_refused_by_axum { StatusCode::NOT_FOUND.into_response() } else { answer };
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// A page that says why a request failed.
struct Failed {
    error: Error,
    /// The way from the page up to the list.
    up: &'static str,
    place: String,
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Self { error, up, place } = self;
        let status = match error.exit {
            _ if is_not_found(&error) => StatusCode::NOT_FOUND,
            Exit::BadInput | Exit::NotSucceeded => StatusCode::CONFLICT,
            Exit::Done | Exit::MasterFailed | Exit::ImageFailed => StatusCode::BAD_GATEWAY,
        };
        let hint = error.hint.clone().unwrap_or_default();
        let html = pages::message(up, &place, "This did not work", &error.to_string(), &hint);
        (status, Html(html)).into_response()
    }
}

/// Makes the page for an error. `up` leads from this page up to the list.
fn failed<E: Into<Error>>(hub: &Hub, up: &'static str) -> impl Fn(E) -> Failed {
    let place = hub.upstream.place();
    move |error| Failed { error: error.into(), up, place: place.clone() }
}

#[derive(Deserialize)]
struct ListQuery {
    /// A part of the name.
    #[serde(default)]
    q: String,
    /// The name of a state. Empty for all.
    #[serde(default)]
    state: String,
}

impl From<ListQuery> for Filter {
    fn from(ListQuery { q, state }: ListQuery) -> Self {
        Self { name: q.trim().to_owned(), state }
    }
}

async fn list(State(hub): Site, Query(query): Query<ListQuery>) -> Html<String> {
    let snapshot = hub.watch(Topic::Jobs).snapshot().await;
    Html(pages::list(&hub.upstream.place(), &snapshot, &query.into()))
}

#[derive(Deserialize)]
struct JobQuery {
    /// The first replica to show.
    #[serde(default)]
    from: usize,
}

async fn job(State(hub): Site, Path(name): Path<JobName>, Query(query): Query<JobQuery>) -> Result<Response, Failed> {
    let mut watching = hub.watch(Topic::Job(name.clone()));
    let snapshot = watching.snapshot().await;
    let in_history = |uid: &str| Redirect::to(&format!("../history/{uid}")).into_response();
    match &snapshot.known.content {
        Content::Job(job) if job.is_past => return Ok(in_history(&job.view.uid)),
        Content::Job(_) | Content::Jobs { .. } => {}
        Content::Nothing => {
            // Asks again for the whole error.
            if let Err(error) = view(&hub, &name).await {
                let is_gone = is_not_found(&error) || !hub.upstream.may_have(&name);
                let past = if is_gone { hub.upstream.newest_past(&name).await } else { None };
                return past.map(|uid| in_history(&uid)).ok_or_else(|| failed(&hub, "../")(error));
            }
        }
    }
    Ok(Html(pages::job(&hub.upstream.place(), &name, &watching, &snapshot, query.from)).into_response())
}

#[derive(Deserialize)]
struct EventsQuery {
    /// The job. Absent: the list of jobs.
    job: Option<JobName>,
    /// The first replica to show.
    #[serde(default)]
    from: usize,
    /// The replica whose output is shown, or `all`. With this parameter, the stream has the output and errors, but no
    /// other part.
    logs: Option<String>,
    /// Where the output continues, if the browser does not send its last event.
    #[serde(default)]
    last: String,
    #[serde(default)]
    q: String,
    #[serde(default)]
    state: String,
}

async fn events(State(hub): Site, headers: HeaderMap, Query(query): Query<EventsQuery>) -> Response {
    let EventsQuery { job, from, logs, last, q, state } = query;
    let last = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()).unwrap_or(&last);
    let (topic, parts, output) = match (job, logs.as_deref().map(output)) {
        (None, _) => {
            let filter = Filter::from(ListQuery { q, state });
            (Topic::Jobs, vec![Part::Trouble, Part::Jobs(filter)], TabOutput::None)
        }
        (Some(job), None) => (Topic::Job(job), Part::of_job(from), TabOutput::All),
        (Some(job), Some(Some(output))) => (Topic::Job(job), vec![Part::Trouble], output),
        (Some(_), Some(None)) => return StatusCode::NOT_FOUND.into_response(),
    };
    let mut watching = hub.watch(topic.clone());
    if let TabOutput::Of(_) = output {
        // Waits until the feed knows the job whose lines it has.
        watching.snapshot().await;
    }
    let mut tab = Tab::new(watching, parts, output, last);
    if let (Topic::Job(job), TabOutput::Of(replica)) = (topic, output) {
        match tab.begins_at() {
            Some(known) => {
                if let Ok(lines) = newest_of(&hub, &job, replica).await {
                    tab.begin_with(&lines, &known);
                }
            }
            None => tab.go_on(),
        }
    }
    Sse::new(tab.events()).keep_alive(KeepAlive::default()).into_response()
}

/// The newest lines of one replica.
async fn newest_of(hub: &Hub, job: &JobName, replica: ReplicaId) -> Result<Vec<Line>, Error> {
    let lines = newest(&hub.upstream.of(job)?, job, Some(replica), 1).await?;
    Ok(lines.iter().map(Line::new).collect())
}

/// The output that a path or a query names.
fn output(text: &str) -> Option<TabOutput> {
    if text == "all" { Some(TabOutput::All) } else { text.parse().ok().map(TabOutput::Of) }
}

#[derive(Deserialize)]
struct LogsQuery {
    /// A text that each shown line contains.
    #[serde(default)]
    q: String,
}

async fn logs(
    State(hub): Site,
    Path((name, which)): Path<(JobName, String)>,
    Query(query): Query<LogsQuery>,
) -> Result<Response, Failed> {
    let Some(output) = output(&which) else { return Ok(StatusCode::NOT_FOUND.into_response()) };
    let client = hub.upstream.of(&name).map_err(failed(&hub, "../../../"))?;
    let view = client.view(&name).await.map_err(failed(&hub, "../../../"))?;
    let replica = if let TabOutput::Of(replica) = output { Some(replica) } else { None };
    let lines = newest(&client, &name, replica, view.replicas.len()).await.map_err(failed(&hub, "../../../"))?;
    let lines = lines[lines.len().saturating_sub(LINES_MAX)..].iter().map(Line::new).collect();
    Ok(Html(pages::logs(&hub.upstream.place(), &view, replica, query.q.trim(), lines)).into_response())
}

async fn tf_config(
    State(hub): Site,
    Path((name, replica)): Path<(JobName, ReplicaId)>,
) -> Result<Html<String>, Failed> {
    let view = view(&hub, &name).await.map_err(failed(&hub, "../../../"))?;
    Ok(Html(pages::tf_config_of(&hub.upstream.place(), &view, replica)))
}

async fn past_job(
    State(hub): Site,
    Path(uid): Path<String>,
    Query(query): Query<JobQuery>,
) -> Result<Html<String>, Failed> {
    let past = hub.upstream.past_job(&uid).await.map_err(failed(&hub, "../"))?;
    let last_output = past.last_output.clone();
    let job = from_history(&hub.upstream, past).await;
    Ok(Html(pages::past_job(&hub.upstream.place(), job, &last_output, query.from)))
}

async fn ask_past(State(hub): Site, Path(uid): Path<String>) -> Result<Html<String>, Failed> {
    let past = hub.upstream.past_job(&uid).await.map_err(failed(&hub, "../../"))?;
    Ok(Html(pages::ask(&hub.upstream.place(), &past.view, &uid, PageAction::Rerun)))
}

async fn rerun_past(
    State(hub): Site,
    Path(uid): Path<String>,
    Form(Rerun { task }): Form<Rerun>,
) -> Result<Redirect, Failed> {
    let past = hub.upstream.past_job(&uid).await.map_err(failed(&hub, "../../"))?;
    let job = run_again(&hub.upstream, &past.view, task).await.map_err(failed(&hub, "../../"))?;
    Ok(Redirect::to(&format!("../../jobs/{job}")))
}

/// The answer to the question before a rerun.
#[derive(Deserialize)]
struct Rerun {
    /// The name of the new job.
    task: JobName,
}

async fn view(hub: &Hub, name: &JobName) -> Result<JobView, Error> {
    Ok(hub.upstream.of(name)?.view(name).await?)
}

async fn ask(State(hub): Site, Path((name, verb)): Path<(JobName, String)>) -> Result<Response, Failed> {
    let Some(action) = PageAction::of_verb(&verb) else { return Ok(StatusCode::NOT_FOUND.into_response()) };
    let view = view(&hub, &name).await.map_err(failed(&hub, "../../"))?;
    Ok(Html(pages::ask(&hub.upstream.place(), &view, name.as_str(), action)).into_response())
}

/// The answer to the question before an action.
#[derive(Deserialize)]
struct Consent {
    /// The uid of the job that the user saw.
    uid: String,
    /// The number of workers that the user wants, for [`PageAction::Scale`].
    #[serde(default)]
    workers: String,
    /// The name of the new job, for [`PageAction::Rerun`].
    task: Option<JobName>,
}

async fn act(
    State(hub): Site,
    Path((job, verb)): Path<(JobName, String)>,
    Form(Consent { uid, workers, task }): Form<Consent>,
) -> Result<Response, Failed> {
    let Some(action) = PageAction::of_verb(&verb) else { return Ok(StatusCode::NOT_FOUND.into_response()) };
    let seen = SeenJob { job, uid };
    let next = action.apply(&hub.upstream, seen, (&workers, task)).await.map_err(failed(&hub, "../../"))?;
    let next = next.map_or_else(|| "../../".to_owned(), |job| format!("../{job}"));
    Ok(Redirect::to(&next).into_response())
}
