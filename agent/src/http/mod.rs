//! The agent's HTTP server: connections, authentication and routes.

mod code;
mod handlers;
mod query;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::TRANSFER_ENCODING;
use hyper::{Method, Request, Response};
use listener::{ConnectionSeat, Limits};
use protocol::routes;
use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::agent::Agent;
use crate::server::HEAD_BYTES;
use crate::server::answer::{self, RequestFailure};
use crate::server::body::AgentBody;

/// A master needs three connections. With the usual limit of 1024 descriptors, enough descriptors remain for logs and
/// pipes. A connection is kept once it has carried an authenticated request. So callers without the token can close only
/// each other's connections.
const LIMITS: Limits =
    Limits { connections: 512, head_bytes: HEAD_BYTES, headers: 100, unkept: Some(Duration::from_secs(10)) };

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
        match listener::bind(*address) {
            // A machine without IPv6 refuses the socket or the address.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => {}
            done => return done.map_err(|source| ListenError { address: *address, source }),
        }
    }
    listener::bind(*last).map_err(|source| ListenError { address: *last, source })
}

/// Answers requests until the sender of `ending` is dropped, then waits for open answers without a limit.
pub(crate) async fn serve(socket: TcpListener, agent: Agent, ending: oneshot::Receiver<Infallible>) {
    let respond = move |request, seat| respond(request, agent.clone(), seat);
    listener::serve(socket, LIMITS, |_| (), respond, async { drop(ending.await) }).await.shutdown().await;
}

async fn respond(
    request: Request<Incoming>,
    agent: Agent,
    seat: Arc<ConnectionSeat>,
) -> Result<Response<AgentBody>, Infallible> {
    let answer = answer(request, &agent, &seat).await;
    Ok(answer.unwrap_or_else(|failure| failure.to_response()))
}

/// Answers a request that has the token, needs none, or requests a public route. All other requests are refused, even
/// for unknown routes.
async fn answer(request: Request<Incoming>, agent: &Agent, seat: &ConnectionSeat) -> answer::Result {
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
        seat.keep();
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
