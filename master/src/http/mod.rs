//! The HTTP server of the master, and its table of routes. Each group of routes has its own file.

mod about;
mod code;
mod connections;
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

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::{Router, middleware};
use hyper_util::server::graceful::GracefulShutdown;
use protocol::code::MANIFEST_BYTES_MAX;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::warn;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::about::AboutMaster;
use self::connections::Connections;
use self::metrics::Metrics;
pub use crate::config::Guard;
use crate::registry::Jobs;

/// Maximum bytes of a request's body, except code. A spec with thousands of variables fits.
const BODY_BYTES: usize = 4 * 1024 * 1024;
/// Maximum connections that the kernel queues before the master accepts them. The kernel's own limit may be lower. If
/// the queue is full, the caller's kernel gets no answer and tries again a second later.
const BACKLOG: u32 = 4096;
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
    connections: Arc<Connections>,
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

/// Binds the address to serve on.
///
/// # Errors
/// Fails if the address is in use, or does not belong to this machine.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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
        Self { router, connections: Connections::new(metrics), end }
    }

    /// Serves until the master ends. Open requests then have a short time to finish.
    pub async fn serve(&self, listener: TcpListener) {
        let graceful = GracefulShutdown::new();
        loop {
            tokio::select! {
                () = self.end.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.connections.serve(stream, &self.router, &graceful),
                    // For example, all descriptors are in use. Open connections free their descriptors when they end.
                    Err(error) => {
                        warn!(%error, "could not accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await;
    }
}
