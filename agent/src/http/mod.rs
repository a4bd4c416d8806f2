//! The agent's HTTP server: connections, authentication and routes.

mod answer;
mod body;
mod code;
mod connections;
mod framing;
mod handlers;
mod incoming;
mod query;
mod token;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use protocol::agent::RunStatus;
use protocol::code::CodeId;
use protocol::routes;
use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::activity::Activity;
use crate::code::CodeFolder;
use crate::log::Output;
use crate::run::Command;
use crate::run::child::RunTemplate;
use answer::{Answer, Failure};
use body::AgentBody;
use connections::{Authenticated, Connections, Slot};
pub use token::{Access, TokenHash};

/// How long a client may take to send the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Maximum bytes of a request's head, and of a connection's buffers.
const HEAD_BYTES: usize = 16 * 1024;

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

/// The code that the job brings.
#[derive(Debug, Clone)]
pub struct JobCode {
    folder: Arc<Mutex<CodeFolder>>,
    /// The code of the newest start. Locked until this code is in place.
    next: Arc<Mutex<Option<CodeId>>>,
}

impl JobCode {
    /// The code of a working directory before the first delivery.
    pub fn new(work_dir: PathBuf) -> Self {
        Self { folder: Arc::new(Mutex::new(CodeFolder::new(work_dir))), next: Arc::default() }
    }
}

/// The shared state that every request needs.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Commands for the runner.
    pub commands: mpsc::Sender<Command>,
    /// The status of the run.
    pub status: watch::Receiver<RunStatus>,
    /// The output of all runs.
    pub output: Arc<Output>,
    /// Open requests.
    pub activity: Activity,
    /// Open requests for the status.
    pub polls: Activity,
    /// Who may send requests.
    pub access: Access,
    /// The code that the job brings.
    pub code: JobCode,
    /// What all runs have in common.
    pub template: Arc<RunTemplate>,
}

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
pub async fn serve(listener: TcpListener, agent: Agent, mut ending: oneshot::Receiver<Infallible>) {
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
    let admitted = match framing::check(request.headers()) {
        Ok(()) => agent.admit(&request).await,
        Err(failure) => Err(failure),
    };
    // An anonymous request does not delay the agent's end.
    let open = matches!(admitted, Ok(Caller::Known)).then(|| {
        authenticated.set();
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
        Route::Healthz => handlers::healthz(&request, agent),
        Route::Config => handlers::config(request, agent).await,
        Route::Warm => handlers::warm(request, agent).await,
        Route::Code(id) => code::offer(id, request, agent).await,
        Route::HeldCode(id) => code::held(id, agent).await,
        Route::CodeBlobs(id) => code::receive(id, request, agent).await,
        Route::Run => handlers::run(&request, agent).await,
        Route::Stop => handlers::stop(&request, agent).await,
        Route::Finish => handlers::finish(agent).await,
        Route::Status => handlers::status(&request, agent).await,
        Route::Logs => handlers::logs(&request, agent).await,
        Route::Reach => handlers::reach(&request).await,
    }
}

/// The caller of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// Has the token, or needs none.
    Known,
    /// Has no token; requests a public route.
    Anonymous,
}

impl Agent {
    /// Admits a request that has the token, needs none, or requests a public route. All other requests are refused,
    /// even for unknown routes.
    async fn admit(&self, request: &Request<Incoming>) -> Result<Caller, Failure> {
        let check = || self.access.check(request.uri(), request.headers()).map(|()| Caller::Known);
        match check() {
            Ok(known) => Ok(known),
            Err(_) if request.uri().path() == routes::HEALTHZ => Ok(Caller::Anonymous),
            Err(_) => {
                self.access.settled(request.headers()).await;
                check()
            }
        }
    }
}

/// The routes of an agent.
#[derive(Debug, Clone, Copy)]
enum Route {
    Healthz,
    Config,
    Warm,
    Code(CodeId),
    HeldCode(CodeId),
    CodeBlobs(CodeId),
    Run,
    Stop,
    Finish,
    Status,
    Logs,
    Reach,
}

/// Finds the route of a request. HEAD is not treated like GET: HEAD must have no effect, but `GET /run` starts a run.
fn route(request: &Request<Incoming>) -> Result<Route, Failure> {
    let (route, method) = match request.uri().path() {
        routes::HEALTHZ => (Route::Healthz, Method::GET),
        routes::AGENT_CONFIG => (Route::Config, Method::POST),
        routes::AGENT_WARM => (Route::Warm, Method::POST),
        routes::AGENT_RUN => (Route::Run, Method::GET),
        routes::AGENT_STOP => (Route::Stop, Method::POST),
        routes::AGENT_FINISH => (Route::Finish, Method::POST),
        routes::AGENT_STATUS => (Route::Status, Method::GET),
        routes::AGENT_LOGS => (Route::Logs, Method::GET),
        routes::AGENT_REACH => (Route::Reach, Method::GET),
        path => match code_route(path, request.method()) {
            Some(route) => route,
            None => return Err(Failure::UnknownRoute(path.to_owned())),
        },
    };
    if *request.method() == method { Ok(route) } else { Err(Failure::Method { allowed: method }) }
}

/// The route for code that has this path, and the route's method.
fn code_route(path: &str, method: &Method) -> Option<(Route, Method)> {
    let path = path.strip_prefix(routes::AGENT_CODE)?;
    match path.strip_suffix(routes::AGENT_CODE_BLOBS) {
        Some(id) => Some((Route::CodeBlobs(id.parse().ok()?), Method::PUT)),
        None if method == Method::GET => Some((Route::HeldCode(path.parse().ok()?), Method::GET)),
        None => Some((Route::Code(path.parse().ok()?), Method::PUT)),
    }
}
