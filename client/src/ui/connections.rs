//! Accepts the page's connections. Every program of this machine can connect, so each connection must send its headers
//! soon, and the number of connections is limited.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Maximum time to send a request's headers, from the connect or the end of the last answer.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of the headers.
const HEADER_BYTES: usize = 64 * 1024;
/// Maximum number of connections at a time. A tab has two at most.
const CONNECTIONS_MAX: usize = 512;
/// How long to wait if the system has no descriptor for a new connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);

/// Serves the routes. Never returns.
pub(crate) async fn serve(listener: TcpListener, routes: Router) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        let Ok((stream, _)) = listener.accept().await else {
            sleep(NO_DESCRIPTOR).await;
            continue;
        };
        // Without this, small events would wait for the acknowledgement of earlier ones. A failure only costs time.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(routes.clone());
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HEADER_BYTES);
        // A broken connection needs no action.
        connections.spawn(async move { drop(server.serve_connection(TokioIo::new(stream), service).await) });
    }
}
