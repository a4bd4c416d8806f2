//! The agent's HTTP: connections, and which route a request takes. Nothing here decides what a run does.

mod answer;
mod body;
mod connections;
mod framing;
mod handlers;
mod query;
mod token;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use protocol::agent::RunStatus;
use protocol::routes;
use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::activity::Activity;
use crate::log::Output;
use crate::run::Command;
use answer::{Answer, Failure};
use body::AgentBody;
use connections::{Connections, Guest, Standing};
pub use token::TokenHash;

/// How long a client may take to send the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Most bytes of the head of a request, and of what waits in a connection either way.
const HEAD_BYTES: usize = 16 * 1024;

/// How long a connection lasts on which nobody has shown that it may ask.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);

/// Connections that wait in the kernel to be taken. One that comes when there are so many has to try again a second later.
const BACKLOG: u32 = 4096;

/// How long to wait before the next try when no connection can be taken, for lack of file descriptors above all.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Silence after which the kernel asks whether a client is still there, and how often until it gives up. A client whose
/// machine has vanished would otherwise seem to listen for ever, and its agent would never end by itself.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_PROBE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;
/// How long a client may leave sent bytes without acknowledgement, or take none, in milliseconds.
const UNACKNOWLEDGED_LIMIT_MS: u32 = 60_000;

/// What all requests share.
#[derive(Debug, Clone)]
pub struct Agent {
    /// To the runner.
    pub commands: mpsc::Sender<Command>,
    /// News of the run.
    pub status: watch::Receiver<RunStatus>,
    /// What was printed.
    pub output: Arc<Output>,
    /// Who is listening.
    pub activity: Activity,
    /// Who may ask; everyone when absent.
    pub token: Option<TokenHash>,
}

/// Why no address could be listened on.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}")]
pub struct ListenError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// Listens on the first of the addresses whose kind this machine has.
///
/// # Errors
/// What the kernel says of that one, or of the last.
pub fn listen(addresses: &[SocketAddr]) -> Result<TcpListener, ListenError> {
    let (last, others) = addresses.split_last().expect("there is an address");
    for address in others {
        match listen_on(*address) {
            // A machine without IPv6 does not know such sockets, or has no such address.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => {}
            done => return done.map_err(|source| ListenError { address: *address, source }),
        }
    }
    listen_on(*last).map_err(|source| ListenError { address: *last, source })
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if address.is_ipv6() {
        // [::] takes IPv4 as well, whatever the machine's default is.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // An agent that ended a moment ago may have left connections behind.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers requests until `ending` is told or dropped, then finishes what is open, however long that takes.
pub async fn serve(listener: TcpListener, agent: Agent, mut ending: oneshot::Receiver<Infallible>) {
    let graceful = GracefulShutdown::new();
    let mut connections = Connections::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((connection, _peer)) => if let Some(guest) = connections.seat() {
                    tokio::spawn(serve_connection(connection, agent.clone(), guest, graceful.watcher()));
                },
                Err(error) => {
                    warn!(%error, "no connection could be taken");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = &mut ending => break,
        }
    }
    drop((listener, agent));
    graceful.shutdown().await;
}

async fn serve_connection(connection: TcpStream, agent: Agent, guest: Guest, watcher: Watcher) {
    if let Err(error) = tune(&connection) {
        debug!(%error, "the connection keeps its default timeouts");
    }
    let Guest { standing, evicted } = guest;
    let service = service_fn(|request| respond(request, &agent, &standing));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(connection), service);
    tokio::select! {
        // The client's doing, and the client's loss.
        result = watcher.watch(connection) => result.unwrap_or_else(|error| debug!(%error, "a connection ended early")),
        _ = evicted => debug!("a connection makes room for another"),
        () = end_of_patience(&standing) => debug!("a connection without a request that may be asked is closed"),
    }
}

async fn end_of_patience(standing: &Standing) {
    sleep(STRANGER_LIMIT).await;
    if standing.is_proven() {
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
    standing: &Standing,
) -> Result<Response<AgentBody>, Infallible> {
    let admitted = framing::check(request.headers()).and_then(|()| agent.admit(&request));
    // What strangers ask keeps no agent from ending.
    let open = matches!(admitted, Ok(Caller::Known)).then(|| {
        standing.prove();
        agent.activity.begin()
    });
    let answer = match admitted.and_then(|_| route(&request)) {
        Ok(route) => answer(route, request, agent).await,
        Err(failure) => Err(failure),
    };
    Ok(match answer {
        Ok(answer) => answer.into_response(open),
        Err(failure) => failure.to_response(),
    })
}

async fn answer(route: Route, request: Request<Incoming>, agent: &Agent) -> Result<Answer, Failure> {
    match route {
        Route::Healthz => Ok(Answer::ok()),
        Route::Config => handlers::config(request, agent).await,
        Route::Run => handlers::run(&request, agent).await,
        Route::Stop => handlers::stop(&request, agent).await,
        Route::Finish => handlers::finish(agent).await,
        Route::Status => handlers::status(&request, agent).await,
        Route::Logs => handlers::logs(&request, agent),
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// Someone who has the token, or anyone where there is none.
    Known,
    /// Anyone, asking what everyone may know.
    Stranger,
}

impl Agent {
    /// Lets a request pass that may be asked. Without the token nobody learns as much as which routes there are.
    fn admit(&self, request: &Request<Incoming>) -> Result<Caller, Failure> {
        if self.token.is_none_or(|token| token.admits(request.headers())) {
            Ok(Caller::Known)
        } else if request.uri().path() == routes::HEALTHZ {
            Ok(Caller::Stranger)
        } else {
            Err(Failure::Unauthorized)
        }
    }
}

/// What can be asked of an agent.
#[derive(Debug, Clone, Copy)]
enum Route {
    Healthz,
    Config,
    Run,
    Stop,
    Finish,
    Status,
    Logs,
}

/// Finds the route of a request. HEAD is not GET here: it must have no effect, and `GET /run` has one.
fn route(request: &Request<Incoming>) -> Result<Route, Failure> {
    let (route, method) = match request.uri().path() {
        routes::HEALTHZ => (Route::Healthz, Method::GET),
        routes::AGENT_CONFIG => (Route::Config, Method::POST),
        routes::AGENT_RUN => (Route::Run, Method::GET),
        routes::AGENT_STOP => (Route::Stop, Method::POST),
        routes::AGENT_FINISH => (Route::Finish, Method::POST),
        routes::AGENT_STATUS => (Route::Status, Method::GET),
        routes::AGENT_LOGS => (Route::Logs, Method::GET),
        path => return Err(Failure::UnknownRoute(path.to_owned())),
    };
    if *request.method() == method { Ok(route) } else { Err(Failure::Method { allowed: method }) }
}
