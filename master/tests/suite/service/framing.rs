//! Tests that requests with an ambiguous length are refused, and that a request hidden behind their body has no effect.

use crate::service::harness::{Master, statuses};

/// A request that follows the body of another request. If the master did not close the connection after it had refused
/// the other request, this request would create a job.
const HIDDEN: &str =
    "GET /create?strategy=AllReduce&n_worker=1&name=hidden HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";

async fn send(master: &Master, head: &str, body: &str) -> (Vec<u16>, String) {
    let request = format!("{head}Host: 127.0.0.1\r\n\r\n{body}{HIDDEN}");
    let answer = master.raw(request.as_bytes()).await;
    assert_eq!(master.jobs.table.list(), [], "{}: {answer}", request.chars().take(500).collect::<String>());
    (statuses(&answer), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_or_invalid_lengths_are_refused_and_end_the_connection() {
    let master = Master::serving(None).await;
    let framings = [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding:\tchunked\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "X: y\r\n Transfer-Encoding: chunked\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: 4, 5\r\n",
        "Content-Length: 4, 4\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: -4\r\n",
        "Content-Length: 0x4\r\n",
        "Content-Length: 4 4\r\n",
        "Content-Length:\r\n",
        "Content-Length : 4\r\n",
        "Content-Length: 99999999999999999999999\r\n",
    ];
    for framing in framings {
        for line in ["POST /v1/jobs", "GET /v1/jobs", "GET /healthz", "GET /nowhere"] {
            let (statuses, answer) = send(&master, &format!("{line} HTTP/1.1\r\n{framing}"), "0\r\n\r\n").await;
            assert_eq!(statuses, [400], "{line} {framing:?}: {answer}");
        }
    }
    let (statuses, answer) =
        send(&master, "POST /v1/jobs HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n").await;
    assert_eq!(statuses, [400], "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_with_a_body_or_with_two_equal_lengths_is_read_as_one_request() {
    let master = Master::serving(None).await;
    for framing in ["Content-Length: 4\r\n", "Content-Length: 4\r\nContent-Length: 4\r\n"] {
        let head = format!("GET /v1/jobs HTTP/1.1\r\n{framing}Connection: close\r\nHost: 127.0.0.1\r\n\r\n");
        let answer = master.raw(format!("{head}abcd").as_bytes()).await;
        assert_eq!(statuses(&answer), [200], "{framing:?}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_too_long_are_refused() {
    let master = Master::serving(None).await;
    let many = "X: y\r\n".repeat(100);
    let (statuses, answer) = send(&master, &format!("GET /v1/jobs HTTP/1.1\r\n{many}"), "").await;
    assert_eq!(statuses, [431], "{answer}");
    let long = "y".repeat(100_000);
    let (statuses, answer) = send(&master, &format!("GET /v1/jobs HTTP/1.1\r\nX: {long}\r\n"), "").await;
    assert_eq!(statuses, [431], "{answer}");
    let (statuses, answer) = send(&master, &format!("GET /v1/jobs?{long} HTTP/1.1\r\n"), "").await;
    assert!(statuses == [414] || statuses == [431], "{answer}");
}
