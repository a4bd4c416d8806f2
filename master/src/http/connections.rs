//! The connections that are open: how many there may be, what each may take, and which is ended first where they are
//! too many. One that waits for its next request, or is slow to say it, makes room for a new one; one whose request is
//! being answered does not.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Most connections at a time: two for each of two thousand clients that follow a job.
const CONNECTIONS_MAX: usize = 4096;
/// Most time that a caller may take to say a request's line and headers, from when it connects or the last answer ends.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a request's line and headers. Longer ones are answered with 431.
const HEADER_BYTES: usize = 64 * 1024;
/// Most headers of a request. More are answered with 431.
const HEADERS_MAX: usize = 64;
/// Silence after which the kernel asks whether a caller is still there, and how often until it gives up. A caller whose
/// machine has vanished would otherwise follow a job for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;
/// How long a caller may leave sent bytes without acknowledgement, or take none, in milliseconds.
const UNACKNOWLEDGED_LIMIT_MS: u32 = 60_000;

/// All open connections.
pub(super) struct Connections {
    most: usize,
    table: Mutex<Table>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Table {
    open: usize,
    /// Whose turn to be ended comes when: raised by one each time a connection begins to wait.
    next_place: u64,
    waiting: BTreeMap<u64, CancellationToken>,
}

/// One open connection.
struct Seat {
    all: Arc<Connections>,
    /// Cancelled when it has to make room.
    evicted: CancellationToken,
    place: AtomicU64,
}

/// As long as this lives, its connection's request is being answered.
struct Answering(Arc<Seat>);

/// The caller of a request, whose body may have to be waited for.
#[derive(Clone)]
pub(super) struct Caller(Arc<Seat>);

/// As long as this lives, a request's body is waited for.
pub(super) struct Awaited(Arc<Seat>);

impl Connections {
    /// None yet. Half of what this process may open stays free for files, agents and records.
    pub(super) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
        let most = descriptors.map_or(CONNECTIONS_MAX, |most| CONNECTIONS_MAX.min(most / 2));
        Arc::new(Self { most, table: Mutex::default(), metrics })
    }

    /// Serves a connection in a task of its own, or closes it at once where all others are being answered.
    pub(super) fn serve(self: &Arc<Self>, stream: TcpStream, router: &Router, graceful: &GracefulShutdown) {
        let Some(seat) = self.seat() else { return };
        if let Err(error) = tune(&stream) {
            debug!(%error, "the connection keeps its default timeouts");
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
                () = evicted.cancelled() => debug!("a connection made room"),
            }
        });
    }

    fn seat(self: &Arc<Self>) -> Option<Arc<Seat>> {
        let mut table = self.lock();
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
        Some(Arc::new(Seat { all: Arc::clone(self), evicted, place }))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Table {
    fn wait(&mut self, evicted: &CancellationToken) -> u64 {
        self.next_place += 1;
        self.waiting.insert(self.next_place, evicted.clone());
        self.next_place
    }
}

impl Seat {
    /// From now on this connection can be ended for a new one, after those that wait already.
    fn wait(&self) {
        let mut table = self.all.lock();
        if !self.evicted.is_cancelled() {
            self.place.store(table.wait(&self.evicted), Ordering::Relaxed);
        }
    }

    /// From now on it cannot.
    fn stay(&self) {
        self.all.lock().waiting.remove(&self.place.load(Ordering::Relaxed));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.all.lock();
        table.waiting.remove(&self.place.load(Ordering::Relaxed));
        // One that had to make room was counted out then.
        if !self.evicted.is_cancelled() {
            table.open -= 1;
        }
        self.all.metrics.show_open(table.open);
    }
}

impl Answering {
    fn begin(seat: Arc<Seat>) -> Self {
        seat.stay();
        Self(seat)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.wait();
    }
}

impl Caller {
    /// Says that the caller is waited for, who may be slow.
    pub(super) fn awaited(&self) -> Awaited {
        self.0.wait();
        Awaited(Arc::clone(&self.0))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.stay();
    }
}

/// Answers a request. Its connection waits again when the answer's body has been taken to its end.
async fn answer(
    seat: Arc<Seat>,
    router: TowerToHyperService<Router>,
    mut request: hyper::Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    request.extensions_mut().insert(Caller(Arc::clone(&seat)));
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
