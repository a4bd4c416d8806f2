//! The master over HTTP: which route goes where. Each group of routes has its file.

mod about;
mod connections;
mod create;
mod error;
mod framing;
mod guard;
mod health;
mod jobs;
mod logs;
mod metrics;
mod openapi;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::{Router, middleware};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::warn;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::about::About;
use self::connections::Connections;
pub use self::guard::Guard;
use self::metrics::Metrics;
use crate::registry::Jobs;

/// Most bytes of a request's body. A spec of thousands of variables fits.
const BODY_BYTES: usize = 4 * 1024 * 1024;
/// Most connections that the system holds until they are accepted; the system's own maximum may be less. Of one that does
/// not fit the caller is told nothing, and tries again a second later.
const BACKLOG: u32 = 4096;
/// Most time that open requests are given when the master ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What `GET /create` makes of a query, for fuzzing.
#[doc(hidden)]
pub fn spec_of_query(query: &str) -> Option<protocol::job::JobSpec> {
    create::parse(query).ok()
}

/// What every handler may use.
#[derive(Clone)]
struct AppState {
    jobs: Arc<Jobs>,
    about: Arc<About>,
    metrics: Arc<Metrics>,
    /// The description of the routes.
    openapi: Bytes,
    /// Cancelled when the master ends, so that streams and long polls end too.
    end: CancellationToken,
}

/// The master's HTTP service.
pub struct Server {
    router: Router,
    connections: Arc<Connections>,
    end: CancellationToken,
}

/// Every route is made of a handler and its description, so that none lacks one.
fn routes(guard: Guard) -> OpenApiRouter<AppState> {
    let guarded = OpenApiRouter::new()
        .routes(routes!(create::create))
        .routes(routes!(jobs::list, jobs::submit))
        .routes(routes!(jobs::show, jobs::delete))
        .routes(routes!(jobs::cancel))
        .routes(routes!(logs::logs))
        .routes(routes!(about::master))
        .routes(routes!(about::agent_program))
        .route_layer(middleware::from_fn_with_state(Arc::new(guard), guard::check));
    OpenApiRouter::with_openapi(openapi::without_routes())
        .merge(guarded)
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::metrics))
        .routes(routes!(openapi::openapi))
}

/// Takes an address to serve on.
///
/// # Errors
/// When it is taken, or none of this machine's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Server {
    /// A service over these jobs, which ends its streams when `end` is cancelled.
    pub fn new(jobs: Arc<Jobs>, guard: Guard, about: About, end: CancellationToken) -> Self {
        let metrics = Metrics::new();
        let (router, document) = routes(guard).split_for_parts();
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

    /// Serves until the master ends; open requests then have a moment to end too.
    pub async fn serve(&self, listener: TcpListener) {
        let graceful = GracefulShutdown::new();
        loop {
            tokio::select! {
                () = self.end.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.connections.serve(stream, &self.router, &graceful),
                    // Out of descriptors, for instance: those that are open go on, and free some when they end.
                    Err(error) => {
                        warn!(%error, "accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await;
    }
}
