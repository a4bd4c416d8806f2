//! The HTTP server of the master, and its table of routes. Each group of routes has its own file.

mod about;
mod code;
mod create;
mod dry_runs;
mod error;
mod framing;
mod guard;
mod health;
mod history;
mod jobs;
mod logs;
mod members;
mod metrics;
mod openapi;
mod request;
mod series;
mod stacks;
mod tfjobs;
mod timeline;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::{Router, middleware};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use listener::{ConnectionSeat, Limits};
use protocol::code::MANIFEST_BYTES_MAX;
use rustix::process::{Resource, getrlimit};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::about::AboutMaster;
use self::metrics::Metrics;
pub use crate::config::Guard;
use crate::registry::Jobs;

/// Maximum bytes of a request's body, except code. A spec with thousands of variables fits.
const BODY_BYTES: usize = 4 * 1024 * 1024;
/// Maximum connections at a time: two for each of two thousand clients that follow a job.
const CONNECTIONS_MAX: usize = 4096;
/// Maximum time for open requests to finish when the master ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Parses the query of `GET /create`, for fuzzing.
#[doc(hidden)]
pub fn spec_of_query(query: &str) -> Option<protocol::job::JobSpec> {
    create::parse(query).ok()
}

/// The state that every handler can use.
#[derive(Clone)]
struct AppState {
    jobs: Arc<Jobs>,
    about: Arc<AboutMaster>,
    metrics: Arc<Metrics>,
    openapi: Bytes,
    /// Cancelled when the master ends, so that streams and long polls end too.
    end: CancellationToken,
}

/// The master's HTTP server.
pub struct Server {
    router: Router,
    metrics: Arc<Metrics>,
    end: CancellationToken,
}

/// The routes. Each route is built from the description of its handler, so no description is missing.
fn routes(guard: Guard) -> OpenApiRouter<AppState> {
    let limit = DefaultBodyLimit::max(MANIFEST_BYTES_MAX);
    let manifests = OpenApiRouter::new().routes(routes!(code::put_manifest)).layer(limit);
    let mut guarded = OpenApiRouter::new()
        .routes(routes!(create::create))
        .routes(routes!(jobs::list, jobs::submit))
        .routes(routes!(jobs::show, jobs::patch, jobs::delete))
        .routes(routes!(jobs::cancel))
        .routes(routes!(members::join))
        .routes(routes!(logs::logs))
        .routes(routes!(series::series))
        .routes(routes!(stacks::stacks))
        .routes(routes!(timeline::timeline))
        .routes(routes!(history::list))
        .routes(routes!(history::show))
        .routes(routes!(tfjobs::list, tfjobs::apply))
        .routes(routes!(tfjobs::show))
        .routes(routes!(dry_runs::job))
        .routes(routes!(dry_runs::tfjob))
        .routes(routes!(about::master))
        .routes(routes!(about::agent_program))
        .routes(routes!(code::put_blobs))
        .merge(manifests)
        .route_layer(middleware::from_fn_with_state(Arc::new(guard), guard::check));
    openapi::describe_guard(guarded.get_openapi_mut());
    OpenApiRouter::with_openapi(openapi::ApiDocument::openapi())
        .merge(guarded)
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::metrics))
        .routes(routes!(openapi::openapi))
}

/// The limits of connections. At least half of this process's descriptors stay free for files, agents and records.
fn limits() -> Limits {
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
    let connections = descriptors.map_or(CONNECTIONS_MAX, |most| CONNECTIONS_MAX.min(most / 2));
    Limits { connections, head_bytes: 64 * 1024, headers: 64, unkept: None }
}

impl Server {
    /// A server for these jobs. When `end` is cancelled, the server ends its streams.
    pub fn new(jobs: Arc<Jobs>, guard: Guard, about: AboutMaster, end: CancellationToken) -> Self {
        let metrics = Metrics::new(jobs.tally(), about.place.namespace());
        let (router, mut document) = routes(guard).split_for_parts();
        openapi::describe_problems(&mut document);
        let openapi = Bytes::from(document.to_json().expect("descriptions always serialize"));
        let state = AppState { jobs, about: Arc::new(about), metrics: Arc::clone(&metrics), openapi, end: end.clone() };
        let panics = metrics.handler_panics.clone();
        let router = router
            .fallback(error::unknown_route)
            .method_not_allowed_fallback(error::method_not_allowed)
            .layer(DefaultBodyLimit::max(BODY_BYTES))
            .layer(CatchPanicLayer::custom(move |panic| {
                panics.inc();
                error::panicked(panic)
            }))
            .layer(middleware::from_fn(framing::check))
            .layer(middleware::from_fn_with_state(Arc::clone(&metrics), metrics::count))
            .with_state(state);
        Self { router, metrics, end }
    }

    /// Serves until the master ends. Open requests then have a short time to finish.
    pub async fn serve(&self, socket: TcpListener) {
        let metrics = Arc::clone(&self.metrics);
        let observe = move |change| metrics.count_connection(change);
        let router = TowerToHyperService::new(self.router.clone());
        let respond = move |mut request: Request<Incoming>, seat: Arc<ConnectionSeat>| {
            request.extensions_mut().insert(Arc::clone(&seat));
            seat.while_answering(router.call(request))
        };
        let open = listener::serve(socket, limits(), observe, respond, self.end.cancelled()).await;
        let _ = timeout(DRAIN_TIMEOUT, open.shutdown()).await;
    }
}
