//! A caller that sends bytes as they are, and what it gets.

use std::net::SocketAddr;
use std::time::Duration;

use e2e::{Master, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Most time that a caller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs callers, many at a time.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads")
}

pub(crate) fn address(master: &Master) -> SocketAddr {
    master.url.strip_prefix("http://").and_then(|address| address.parse().ok()).expect("an address")
}

/// What comes back on one connection for these bytes, until the master closes it.
pub(crate) async fn send(to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.expect("the master listens");
    let mut answer = vec![];
    // The master may refuse, and close the connection, before it has read all.
    let _ = stream.write_all(bytes).await;
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the master answers or closes");
    answer
}

/// The status of each answer.
pub(crate) fn statuses(answers: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answers);
    let after = text.split("HTTP/1.").skip(1);
    after.filter_map(|answer| answer.split(' ').nth(1)?.parse().ok()).collect()
}

/// Asserts that the master serves, that nothing of it broke, and that it has no job.
#[track_caller]
pub(crate) fn assert_untouched(scene: &Scene, master: &Master) {
    let curl = |path: &str| scene.curl(&[&format!("{}{path}", master.url)]);
    assert_eq!(curl("/v1/jobs"), r#"{"jobs":[]}"#);
    let metrics = curl("/metrics");
    assert!(metrics.contains("muster_http_handler_panics_total 0\n"), "{metrics}");
    assert!(!metrics.contains("status=\"5"), "{metrics}");
    assert!(!master.log().contains("panicked"), "{}", master.log());
}
