//! The agent's HTTP: connections, and which route a request takes. Nothing here decides what a run does.

mod answer;
mod body;
mod handlers;
mod query;
mod token;

use std::convert::Infallible;
use std::io;
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
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::activity::Activity;
use crate::log::Output;
use crate::run::Command;
use answer::{Answer, Failure};
use body::AgentBody;
pub use token::TokenHash;

/// How long a client may take to send the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// How long open answers may go on when the agent ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

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

/// Answers requests until `ending` is told or dropped, then finishes what is open, within a limit.
pub async fn serve(listener: TcpListener, agent: Agent, mut ending: oneshot::Receiver<Infallible>) {
    let graceful = GracefulShutdown::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((connection, _peer)) => {
                    tokio::spawn(serve_connection(connection, agent.clone(), graceful.watcher()));
                }
                Err(error) => {
                    warn!(%error, "no connection could be taken");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = &mut ending => break,
        }
    }
    drop((listener, agent));
    if timeout(SHUTDOWN_LIMIT, graceful.shutdown()).await.is_err() {
        warn!("open answers are cut off");
    }
}

async fn serve_connection(connection: TcpStream, agent: Agent, watcher: Watcher) {
    if let Err(error) = tune(&connection) {
        debug!(%error, "the connection keeps its default timeouts");
    }
    let service = service_fn(|request| respond(request, agent.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(connection), service);
    if let Err(error) = watcher.watch(connection).await {
        // The client's doing, and the client's loss.
        debug!(%error, "a connection ended early");
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

async fn respond(request: Request<Incoming>, agent: Agent) -> Result<Response<AgentBody>, Infallible> {
    let open = agent.activity.begin();
    let answer = match route(&request).and_then(|route| agent.admit(route, &request)) {
        Ok(Route::Healthz) => Ok(Answer::ok()),
        Ok(Route::Config) => handlers::config(request, &agent).await,
        Ok(Route::Run) => handlers::run(&request, &agent).await,
        Ok(Route::Stop) => handlers::stop(&request, &agent).await,
        Ok(Route::Finish) => handlers::finish(&agent).await,
        Ok(Route::Status) => handlers::status(&request, &agent).await,
        Ok(Route::Logs) => handlers::logs(&request, &agent),
        Err(failure) => Err(failure),
    };
    Ok(match answer {
        Ok(answer) => answer.into_response(open),
        Err(failure) => failure.to_response(),
    })
}

impl Agent {
    /// Lets a request pass that may ask for this.
    fn admit(&self, route: Route, request: &Request<Incoming>) -> Result<Route, Failure> {
        let is_known = self.token.is_none_or(|token| token.admits(request.headers()));
        if is_known || matches!(route, Route::Healthz) { Ok(route) } else { Err(Failure::Unauthorized) }
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
