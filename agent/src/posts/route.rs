//! The address to which a run's script posts its progress: one route, with a token that no other route accepts.

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use protocol::progress::Progress;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::body::progress_after;
use crate::server::HEAD_BYTES;
use crate::server::answer::{self, RequestFailure};
use crate::server::incoming::{BODY_TIME, read_body};
use crate::token::{Denied, TokenHash};

/// The path to post to.
pub(crate) const PATH: &str = "/trainer-status";

/// Maximum bytes of a post.
const BODY_LIMIT: usize = 64 * 1024;

/// Maximum number of connections. Further connections wait in the kernel.
const CONNECTIONS_MAX: usize = 16;

/// Pause after each connection. So the agent handles at most 50 posts a second, even if a script posts without end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Pause after an error, because its cause may last.
const ERROR_PAUSE: Duration = Duration::from_secs(5);

/// Receives the posts of one run, until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, token: TokenHash, posted: watch::Sender<Option<Progress>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                match accepted {
                    Ok((connection, _)) => drop(connections.spawn(serve_one(connection, token, posted.clone()))),
                    Err(error) => {
                        warn!(%error, "cannot accept a post of a run's progress");
                        sleep(ERROR_PAUSE).await;
                    }
                }
                sleep(ACCEPT_PAUSE).await;
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one request. A connection that lasts longer is closed, so that it does not keep others waiting.
async fn serve_one(connection: TcpStream, token: TokenHash, posted: watch::Sender<Option<Progress>>) {
    let service = service_fn(async |request| {
        let answer = receive(request, token, &posted).await;
        Ok::<_, Infallible>(answer.unwrap_or_else(|failure| failure.to_response()))
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(connection), service);
    if !matches!(timeout(BODY_TIME, connection).await, Ok(Ok(()))) {
        debug!("a connection for a post ended early");
    }
}

async fn receive(
    request: Request<Incoming>,
    token: TokenHash,
    posted: &watch::Sender<Option<Progress>>,
) -> answer::Result {
    if !token.admits(request.headers()) {
        return Err(Denied::Token.into());
    }
    if request.uri().path() != PATH {
        return Err(RequestFailure::UnknownRoute(request.uri().path().to_owned()));
    }
    if request.method() != Method::POST {
        return Err(RequestFailure::Method { allowed: Method::POST });
    }
    let body = read_body(request.into_body(), BODY_LIMIT).await?;
    let progress = progress_after(posted.borrow().as_ref(), &body).map_err(RequestFailure::Post)?;
    posted.send_replace(Some(progress));
    Ok(answer::ok())
}
