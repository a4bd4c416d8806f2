//! The agent's HTTP server: connections, authentication and routes.

mod code;
mod connections;
mod handlers;
mod query;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::TRANSFER_ENCODING;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use protocol::routes;
use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::agent::Agent;
use crate::server::HEAD_BYTES;
use crate::server::answer::{self, RequestFailure};
use crate::server::body::AgentBody;
use connections::{Authenticated, Connections, Slot};

/// How long a client may take to send the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection without an authenticated request may last.
const ANONYMOUS_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of connections that wait in the kernel to be accepted. The kernels of further clients retry after a
/// second.
const BACKLOG: u32 = 4096;

/// How long to wait after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Silence after which the kernel probes a client, the pause between probes, and the number of probes. Without probes,
/// the connection of a vanished machine would stay open for ever, and the agent would never end by itself.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;
/// How long bytes for a client may stay unacknowledged or unsent, in milliseconds.
const UNACKNOWLEDGED_LIMIT_MS: u32 = 60_000;

/// The agent could not listen on this address.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}")]
pub struct ListenError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// Listens on the first address whose kind (IPv4 or IPv6) this machine supports.
///
/// # Errors
/// The kernel's error for this address. If the machine supports no kind, the kernel's error for the last address.
pub fn listen(addresses: &[SocketAddr]) -> Result<TcpListener, ListenError> {
    let (last, others) = addresses.split_last().expect("there is an address");
    for address in others {
        match listen_on(*address) {
            // A machine without IPv6 refuses the socket or the address.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => {}
            done => return done.map_err(|source| ListenError { address: *address, source }),
        }
    }
    listen_on(*last).map_err(|source| ListenError { address: *last, source })
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if address.is_ipv6() {
        // With this option, [::] accepts IPv4 too, whatever the machine's default is.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Without this option, closed connections of an earlier agent could still block the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers requests until the sender of `ending` is dropped, then waits for open answers without a limit.
pub(crate) async fn serve(listener: TcpListener, agent: Agent, mut ending: oneshot::Receiver<Infallible>) {
    let graceful = GracefulShutdown::new();
    let mut connections = Connections::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((connection, _peer)) => if let Some(slot) = connections.admit() {
                    tokio::spawn(serve_connection(connection, agent.clone(), slot, graceful.watcher()));
                },
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = &mut ending => break,
        }
    }
    drop((listener, agent));
    graceful.shutdown().await;
}

async fn serve_connection(connection: TcpStream, agent: Agent, slot: Slot, watcher: Watcher) {
    if let Err(error) = tune(&connection) {
        debug!(%error, "could not set the options of a connection");
    }
    let Slot { authenticated, evicted } = slot;
    let service = service_fn(|request| respond(request, &agent, &authenticated));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(connection), service);
    tokio::select! {
        // An error breaks only this client's connection.
        result = watcher.watch(connection) => result.unwrap_or_else(|error| debug!(%error, "a connection ended early")),
        _ = evicted => debug!("a connection is closed to make room for another"),
        () = anonymous_limit(&authenticated) => debug!("a connection without an authenticated request is closed"),
    }
}

async fn anonymous_limit(authenticated: &Authenticated) {
    sleep(ANONYMOUS_LIMIT).await;
    if authenticated.get() {
        pending().await
    }
}

fn tune(connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    sockopt::set_socket_keepalive(connection, true)?;
    sockopt::set_tcp_keepidle(connection, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(connection, KEEP_ALIVE_PROBE)?;
    sockopt::set_tcp_keepcnt(connection, KEEP_ALIVE_PROBES)?;
    Ok(sockopt::set_tcp_user_timeout(connection, UNACKNOWLEDGED_LIMIT_MS)?)
}

async fn respond(
    request: Request<Incoming>,
    agent: &Agent,
    authenticated: &Authenticated,
) -> Result<Response<AgentBody>, Infallible> {
    let answer = answer(request, agent, authenticated).await;
    Ok(answer.unwrap_or_else(|failure| failure.to_response()))
}

/// Answers a request that has the token, needs none, or requests a public route. All other requests are refused, even
/// for unknown routes.
async fn answer(request: Request<Incoming>, agent: &Agent, authenticated: &Authenticated) -> answer::Result {
    let headers = request.headers();
    // If the length of a body is ambiguous, a proxy and this agent may disagree about where the next request begins
    // (RFC 9112, 11.2). hyper accepts Transfer-Encoding and silently drops a Content-Length beside it, so a request with
    // both headers looks like a plain chunked request. hyper itself refuses an invalid or a contradictory Content-Length.
    if headers.contains_key(TRANSFER_ENCODING) {
        return Err(RequestFailure::Framing);
    }
    let check = || agent.access.check(request.uri(), headers);
    let is_anonymous = match check() {
        Ok(()) => false,
        Err(_) if request.uri().path() == routes::HEALTHZ => true,
        Err(_) => {
            agent.access.settled(headers).await;
            check()?;
            false
        }
    };
    // An anonymous request does not delay the agent's end.
    let _open = (!is_anonymous).then(|| {
        authenticated.set();
        agent.activity.begin()
    });
    route(request, agent).await
}

/// Passes a request to the function for its route. HEAD is not treated like GET: HEAD must have no effect, but
/// `GET /run` starts a run.
async fn route(request: Request<Incoming>, agent: &Agent) -> answer::Result {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (allowed, answer): (Method, Pin<Box<dyn Future<Output = answer::Result> + Send>>) = match path.as_str() {
        routes::HEALTHZ => (Method::GET, Box::pin(handlers::healthz(request, agent))),
        routes::AGENT_CONFIG => (Method::POST, Box::pin(handlers::config(request, agent))),
        routes::AGENT_WARM => (Method::POST, Box::pin(handlers::warm(request, agent))),
        routes::AGENT_RUN => (Method::GET, Box::pin(handlers::run(request, agent))),
        routes::AGENT_NOTICE => (Method::POST, Box::pin(handlers::notice(request, agent))),
        routes::AGENT_STACKS => (Method::POST, Box::pin(handlers::stacks(request, agent))),
        routes::AGENT_STOP => (Method::POST, Box::pin(handlers::stop(request, agent))),
        routes::AGENT_FINISH => (Method::POST, Box::pin(handlers::finish(agent))),
        routes::AGENT_STATUS => (Method::GET, Box::pin(handlers::status(request, agent))),
        routes::AGENT_LOGS => (Method::GET, Box::pin(handlers::logs(request, agent))),
        routes::AGENT_REACH => (Method::GET, Box::pin(handlers::reach(request))),
        path => match (code::parse(path), &method) {
            (Some((id, true)), _) => (Method::PUT, Box::pin(code::receive(id, request, agent))),
            (Some((id, false)), &Method::GET) => (Method::GET, Box::pin(code::held(id, agent))),
            (Some((id, false)), _) => (Method::PUT, Box::pin(code::offer(id, request, agent))),
            (None, _) => return Err(RequestFailure::UnknownRoute(path.to_owned())),
        },
    };
    if method == allowed { answer.await } else { Err(RequestFailure::Method { allowed }) }
}
