//! A caller that sends raw bytes and reads the answer.

use std::net::SocketAddr;
use std::time::Duration;

use e2e::{Master, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Maximum time that a caller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a runtime for concurrent callers.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("cannot start threads")
}

pub(crate) fn address(master: &Master) -> SocketAddr {
    master.url.strip_prefix("http://").and_then(|address| address.parse().ok()).expect("the URL has no address")
}

/// Sends bytes on a new connection. Returns everything that the master sends until it closes the connection.
pub(crate) async fn send(to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.expect("cannot connect to the master");
    let mut answer = vec![];
    // The master may refuse the request and close the connection before it has read everything.
    let _ = stream.write_all(bytes).await;
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the master has neither answered nor closed the connection");
    answer
}

/// Returns the status code of each answer.
pub(crate) fn statuses(answers: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answers);
    let after = text.split("HTTP/1.").skip(1);
    after.filter_map(|answer| answer.split(' ').nth(1)?.parse().ok()).collect()
}

/// Asserts that the master still serves, has no job, has not panicked, and has answered no request with 5xx.
#[track_caller]
pub(crate) fn assert_untouched(scene: &Scene, master: &Master) {
    let curl = |path: &str| scene.curl(&[&format!("{}{path}", master.url)]);
    assert!(curl("/v1/jobs").ends_with(r#""jobs":[]}"#));
    let metrics = curl("/metrics");
    assert!(metrics.contains("muster_http_handler_panics_total 0\n"), "{metrics}");
    assert!(!metrics.contains("status=\"5"), "{metrics}");
    assert!(!master.log().contains("panicked"), "{}", master.log());
}
