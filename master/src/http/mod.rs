//! The master over HTTP: which route goes where, and how connections are served. Each group of routes has its file.

mod about;
mod create;
mod error;
mod guard;
mod health;
mod jobs;
mod logs;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{Router, middleware};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use protocol::routes;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;
use tracing::{debug, warn};

pub use self::about::About;
pub use self::guard::Guard;
use crate::jobs::Jobs;

/// Most time that a caller may take to say its request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a request's body. A spec of thousands of variables fits.
const BODY_BYTES: usize = 4 * 1024 * 1024;
/// Most time between two parts of a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Most time that open requests are given when the master ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What `GET /create` makes of a query, for fuzzing.
#[cfg(feature = "fake")]
#[doc(hidden)]
pub fn spec_of_query(query: &str) -> Option<protocol::job::JobSpec> {
    create::parse(query).ok()
}

/// What every handler may use.
#[derive(Clone)]
struct AppState {
    jobs: Arc<Jobs>,
    about: Arc<About>,
    /// Cancelled when the master ends, so that streams and long polls end too.
    end: CancellationToken,
}

/// The master's HTTP service.
pub struct Server {
    router: Router,
    end: CancellationToken,
}

impl Server {
    /// A service over these jobs, which ends its streams when `end` is cancelled.
    pub fn new(jobs: Arc<Jobs>, guard: Guard, about: About, end: CancellationToken) -> Self {
        let state = AppState { jobs, about: Arc::new(about), end: end.clone() };
        let job = format!("{}/{{name}}", routes::JOBS);
        let guarded = Router::new()
            .route(routes::CREATE, get(create::create))
            .route(routes::JOBS, get(jobs::list).post(jobs::submit))
            .route(&job, get(jobs::show).delete(jobs::delete))
            .route(&format!("{job}/cancel"), post(jobs::cancel))
            .route(&format!("{job}/logs"), get(logs::logs))
            .route(routes::MASTER, get(about::master))
            .route(routes::AGENT_PROGRAM, get(about::agent_program))
            .route_layer(middleware::from_fn_with_state(Arc::new(guard), guard::check));
        let router = guarded
            .route(routes::HEALTHZ, get(health::healthz))
            .route(routes::READYZ, get(health::readyz))
            .fallback(error::unknown_route)
            .method_not_allowed_fallback(error::method_not_allowed)
            .layer(DefaultBodyLimit::max(BODY_BYTES))
            .layer(RequestBodyTimeoutLayer::new(BODY_TIMEOUT))
            .layer(CatchPanicLayer::custom(error::panicked))
            .with_state(state);
        Self { router, end }
    }

    /// Serves until the master ends; open requests then have a moment to end too.
    pub async fn serve(&self, listener: TcpListener) {
        let graceful = GracefulShutdown::new();
        loop {
            tokio::select! {
                () = self.end.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.serve_connection(stream, &graceful),
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

    fn serve_connection(&self, stream: TcpStream, graceful: &GracefulShutdown) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "a connection is gone already");
        }
        let service = TowerToHyperService::new(self.router.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection ended early");
            }
        });
    }
}
