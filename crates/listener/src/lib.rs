//! Serves HTTP/1 on a socket. Each connection must send the head of a request soon, and the number of connections is
//! limited. The programs own their routes, and decide when a connection may be closed to make room for another.

mod reserved;
mod seats;

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::sleep;
use tracing::{debug, warn};

pub use reserved::ReservedPorts;
use seats::ConnectionTable;
pub use seats::{ConnectionSeat, SeatChange};

/// Maximum connections that wait in the kernel to be accepted. The kernel's own limit may be lower. If the queue is full,
/// the caller's kernel gets no answer and tries again a second later.
const BACKLOG: u32 = 4096;
/// How long to wait after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for a caller to send the head of a request, counted from the beginning of the connection or from the end
/// of its last answer.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Silence after which the kernel sends keep-alive probes, the probes' interval, and their number. Without probes, the
/// connection of a vanished machine would stay open for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;
/// Maximum time for a caller to acknowledge sent bytes, or to accept new bytes, in milliseconds.
const UNACKNOWLEDGED_LIMIT_MS: u32 = 60_000;

/// The limits of one program.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum connections at a time, at least 1.
    pub connections: usize,
    /// Maximum bytes of a request's line and headers. A longer head is answered with 431.
    pub head_bytes: usize,
    /// Maximum headers of a request. A request with more headers is answered with 431.
    pub headers: usize,
    /// How long a connection may last that no handler has kept by [`ConnectionSeat::keep`]. `None` for no limit.
    pub unkept: Option<Duration>,
}

/// Binds an address to serve on. An IPv6 address accepts IPv4 too, whatever the machine's default is.
///
/// # Errors
/// Fails if the address is in use, or does not belong to this machine.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Without this option, closed connections of an earlier program could still block the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers requests with `respond` until `end` resolves. If too many connections are open, a new connection replaces the
/// connection that has waited longest. If none waits, the new connection is closed. `observe` is told each change of the
/// number of connections, while a lock is held. Returns the open connections, whose answers the caller can await.
pub async fn serve<R, F, B>(
    listener: TcpListener,
    limits: Limits,
    observe: impl Fn(SeatChange) + Send + Sync + 'static,
    respond: R,
    end: impl Future<Output = ()>,
) -> GracefulShutdown
where
    R: Fn(Request<Incoming>, Arc<ConnectionSeat>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_headers(limits.headers);
    http.max_buf_size(limits.head_bytes).max_header_size(limits.head_bytes);
    let graceful = GracefulShutdown::new();
    let table = ConnectionTable::new(limits.connections, Box::new(observe));
    let mut end = pin!(end);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut end => return graceful,
        };
        match accepted.map(|(stream, _)| (stream, table.seat())) {
            Ok((stream, Some(seat))) => {
                set_options(&stream);
                let (respond, of_requests) = (respond.clone(), Arc::clone(&seat));
                let service = service_fn(move |request| respond(request, Arc::clone(&of_requests)));
                let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
                tokio::spawn(until_its_end(connection, seat, limits.unkept));
            }
            Ok((_, None)) => {}
            Err(error) => {
                warn!(%error, "could not accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection until it ends, or must be closed.
async fn until_its_end(
    connection: impl Future<Output = hyper::Result<()>>,
    seat: Arc<ConnectionSeat>,
    unkept: Option<Duration>,
) {
    let expired = async {
        sleep(unkept.unwrap_or(Duration::MAX)).await;
        if seat.is_kept() {
            pending().await
        }
    };
    tokio::select! {
        // An error breaks only this caller's connection.
        ended = connection => ended.unwrap_or_else(|error| debug!(%error, "a connection ended early")),
        () = seat.evicted() => debug!("closed a connection to make room for another"),
        () = expired => debug!("closed a connection that no handler has kept"),
    }
}

/// Sets the kernel's options for a connection. A failure only costs time and memory.
fn set_options(stream: &TcpStream) {
    let set = || {
        // Without this option, small pieces of an answer would wait for the acknowledgement of earlier ones.
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
        sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_PROBE)?;
        sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_PROBES)?;
        Ok(sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_LIMIT_MS)?)
    };
    set().unwrap_or_else(|error: io::Error| debug!(%error, "could not set the options of a connection"));
}
