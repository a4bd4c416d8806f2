//! Limits the number of open connections, and the time and size of each request's headers. If too many connections are
//! open, the master closes one to make room for a new connection: the one that has been idle, or has not completed its
//! request, for longest. It never closes a connection for this reason between the arrival of a complete request and the
//! end of the answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use rustix::process::{Resource, getrlimit};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::metrics::Metrics;
use crate::mutex::Mutex;

/// Maximum connections at a time: two for each of two thousand clients that follow a job.
const CONNECTIONS_MAX: usize = 4096;
/// Maximum time for a caller to send a request's line and headers, counted from the beginning of the connection or from
/// the end of its last answer.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a request's line and headers. A longer request is answered with 431.
const HEADER_BYTES: usize = 64 * 1024;
/// Maximum headers of a request. A request with more headers is answered with 431.
const HEADERS_MAX: usize = 64;
/// Silence after which the kernel sends keep-alive probes, the probes' interval, and their number. Without probes, a
/// caller whose machine has vanished would follow a job for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;
/// Maximum time for a caller to acknowledge sent bytes, or to accept new bytes, in milliseconds.
const UNACKNOWLEDGED_LIMIT_MS: u32 = 60_000;

/// All open connections.
pub(super) struct Connections {
    most: usize,
    table: Mutex<ConnectionTable>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct ConnectionTable {
    open: usize,
    /// The number that was given last to a waiting connection. The connection with the lowest number is closed first.
    newest_place: u64,
    waiting: BTreeMap<u64, CancellationToken>,
}

/// One open connection. Each request has the `ConnectionSeat` of its connection as an extension, for handlers that wait for the
/// request's body.
pub(super) struct ConnectionSeat {
    all: Arc<Connections>,
    /// Cancelled when the connection must be closed for a new one.
    evicted: CancellationToken,
    place: AtomicU64,
}

/// Exists from the arrival of a request's headers until the request is answered. Meanwhile the connection is not closed
/// for a new one, except while an [`AwaitedBody`] exists.
struct Answering(Arc<ConnectionSeat>);

/// While this exists, the server waits for a request's body.
pub(super) struct AwaitedBody(Arc<ConnectionSeat>);

impl Connections {
    /// An empty table. At least half of this process's descriptors stay free for files, agents and records.
    pub(super) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
        let most = descriptors.map_or(CONNECTIONS_MAX, |most| CONNECTIONS_MAX.min(most / 2));
        Arc::new(Self { most, table: Mutex::default(), metrics })
    }

    /// Serves a connection in its own task. If too many are open and none can be closed, closes the new connection.
    pub(super) fn serve(self: &Arc<Self>, stream: TcpStream, router: &Router, graceful: &GracefulShutdown) {
        let Some(seat) = self.seat() else { return };
        if let Err(error) = tune(&stream) {
            debug!(%error, "could not set the options of a connection");
        }
        let evicted = seat.evicted.clone();
        let router = TowerToHyperService::new(router.clone());
        let service = hyper::service::service_fn(move |request| answer(Arc::clone(&seat), router.clone(), request));
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(HEADER_BYTES)
            .max_header_size(HEADER_BYTES)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    debug!(%error, "a connection ended early");
                },
                () = evicted.cancelled() => debug!("closed a connection to make room for another"),
            }
        });
    }

    fn seat(self: &Arc<Self>) -> Option<Arc<ConnectionSeat>> {
        let mut table = self.table.lock();
        if table.open >= self.most {
            let Some((_, longest)) = table.waiting.pop_first() else {
                self.metrics.connections_refused.inc();
                return None;
            };
            longest.cancel();
            table.open -= 1;
            self.metrics.connections_evicted.inc();
        }
        table.open += 1;
        let evicted = CancellationToken::new();
        let place = AtomicU64::new(table.wait(&evicted));
        self.metrics.show_open(table.open);
        Some(Arc::new(ConnectionSeat { all: Arc::clone(self), evicted, place }))
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_PROBE)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_PROBES)?;
    Ok(sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_LIMIT_MS)?)
}

impl ConnectionTable {
    fn wait(&mut self, evicted: &CancellationToken) -> u64 {
        self.newest_place += 1;
        self.waiting.insert(self.newest_place, evicted.clone());
        self.newest_place
    }
}

impl ConnectionSeat {
    /// From now on, this connection can be closed for a new one. Connections that have waited longer are closed first.
    fn wait(&self) {
        let mut table = self.all.table.lock();
        if !self.evicted.is_cancelled() {
            self.place.store(table.wait(&self.evicted), Ordering::Relaxed);
        }
    }

    /// Until the returned value is dropped, this connection can be closed for a new one.
    pub(super) fn awaited(self: &Arc<Self>) -> AwaitedBody {
        self.wait();
        AwaitedBody(Arc::clone(self))
    }

    /// From now on, this connection cannot be closed for a new one.
    fn stay(&self) {
        self.all.table.lock().waiting.remove(&self.place.load(Ordering::Relaxed));
    }
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        let mut table = self.all.table.lock();
        table.waiting.remove(&self.place.load(Ordering::Relaxed));
        // For an evicted connection, the eviction has already lowered the count.
        if !self.evicted.is_cancelled() {
            table.open -= 1;
        }
        self.all.metrics.show_open(table.open);
    }
}

impl Answering {
    fn begin(seat: Arc<ConnectionSeat>) -> Self {
        seat.stay();
        Self(seat)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.wait();
    }
}

impl Drop for AwaitedBody {
    fn drop(&mut self) {
        self.0.stay();
    }
}

/// Answers a request. After the whole answer was sent, the connection waits for the next request.
async fn answer(
    seat: Arc<ConnectionSeat>,
    router: TowerToHyperService<Router>,
    mut request: hyper::Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    request.extensions_mut().insert(Arc::clone(&seat));
    let answering = Answering::begin(seat);
    let response = router.call(request).await?;
    let until_its_end = |body: Body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &answering;
            frame
        }))
    };
    Ok(response.map(until_its_end))
}

#[cfg(test)]
#[path = "connections_tests.rs"]
mod tests;
