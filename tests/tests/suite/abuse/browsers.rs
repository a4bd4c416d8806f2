//! Tests of requests that a web page can make a browser send, and of requests with another host's name.

use std::net::SocketAddr;

use e2e::Scene;

use crate::abuse::caller::{address, assert_untouched, runtime, send, statuses};

/// Headers that show that a browser sends the request, or that the request is for another host or for no host.
const MARKS: [&str; 25] = [
    "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n",
    "Host: 127.0.0.1\r\nOrigin: null\r\n",
    "Host: 127.0.0.1\r\nOrigin: http://127.0.0.1:7897\r\n",
    "Host: 127.0.0.1\r\nReferer: http://evil.example/page\r\n",
    "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n",
    "Host: 127.0.0.1\r\nSec-Fetch-Mode: no-cors\r\n",
    "Host: 127.0.0.1\r\nSec-Fetch-Dest: image\r\n",
    "Host: 127.0.0.1\r\nsec-fetch-user: ?1\r\n",
    "Host: 127.0.0.1\r\nSEC-FETCH-ANYTHING: none\r\n",
    "Host: 127.0.0.1\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/89.0\r\n",
    "Host: evil.example\r\n",
    "Host: evil.example:7897\r\n",
    "Host: localhost.evil.example\r\n",
    "Host: 127.0.0.1.evil.example\r\n",
    "Host: localhost.\r\n",
    "Host: 127.0.0.1.\r\n",
    "Host: user@127.0.0.1\r\n",
    "Host: 127.0.0.1:7897@evil.example\r\n",
    "Host: [::1]evil.example\r\n",
    "Host: [::ffff:10.0.0.1]\r\n",
    "Host: 10.0.0.1\r\n",
    "Host: 127.0.0.1\r\nHost: evil.example\r\n",
    "Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n",
    "Host:\r\n",
    "",
];

const JOB: &str = r#"{"name":"forged","strategy":"AllReduce"}"#;

/// Returns requests with this mark. Without the mark, the first of these requests would create a job. A web page can
/// choose some content types, so the list contains a POST with each of three content types.
fn requests(mark: &str) -> Vec<String> {
    let mark = &format!("{mark}Connection: close\r\n");
    let query = "/create?strategy=AllReduce&n_worker=1&name=forged";
    let post = |kind: &str| {
        let length = JOB.len();
        format!("POST /v1/jobs HTTP/1.1\r\n{mark}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{JOB}")
    };
    let mut requests = vec![
        format!("GET {query} HTTP/1.1\r\n{mark}\r\n"),
        format!("GET {query} HTTP/1.0\r\n{mark}\r\n"),
        format!("HEAD {query} HTTP/1.1\r\n{mark}\r\n"),
        format!("GET http://evil.example{query} HTTP/1.1\r\n{mark}\r\n"),
        format!("POST /v1/jobs/forged/cancel HTTP/1.1\r\n{mark}Content-Length: 0\r\n\r\n"),
        format!("DELETE /v1/jobs/forged HTTP/1.1\r\n{mark}\r\n"),
        format!("OPTIONS /v1/jobs HTTP/1.1\r\n{mark}Access-Control-Request-Method: POST\r\n\r\n"),
    ];
    requests.extend(["application/json", "text/plain", "application/x-www-form-urlencoded"].map(post));
    requests
}

/// Sends `count` requests. Returns a summary of the answers.
fn abuse(count: usize) -> String {
    let scene = Scene::new("open('started', 'w').close()");
    let master = scene.master();
    let to: SocketAddr = address(&master);
    let all: Vec<String> = MARKS.iter().flat_map(|mark| requests(mark)).collect();
    let sent = runtime().block_on(async {
        let mut sent = 0;
        for request in all.iter().cycle().take(count) {
            let answer = send(to, request.as_bytes()).await;
            let is_refused = matches!(statuses(&answer).as_slice(), [400 | 403 | 405]);
            assert!(is_refused, "not refused: {request}\n{}", String::from_utf8_lossy(&answer));
            sent += 1;
        }
        sent
    });
    assert_untouched(&scene, &master);
    assert!(!scene.path().join("started").exists(), "a script ran");
    format!("{sent} requests of browsers or for other hosts: {sent} refused, 0 effects")
}

#[test]
fn requests_from_browsers_or_to_other_host_names_have_no_effect() {
    println!("{}", abuse(250));
}

#[test]
#[ignore = "sends the full number of requests: --ignored"]
fn a_thousand_requests_from_browsers_or_to_other_host_names_have_no_effect() {
    println!("{}", abuse(1_000));
}
