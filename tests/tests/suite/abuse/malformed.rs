//! Tests of randomly broken requests. The generator has a fixed seed, so a failure can be reproduced.

use std::collections::BTreeMap;

use e2e::Scene;
use futures_util::StreamExt;

use crate::abuse::caller::{address, assert_untouched, runtime, send, statuses};

/// Requests of different kinds, before they are broken. These requests have no effect.
const VALID: [&str; 10] = [
    "GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "GET /v1/jobs/absent?after=3&wait=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "GET /v1/jobs/absent/logs?replica=worker-0&offset=5&follow=true HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    "GET /v1/jobs/absent/logs?from=worker-0:1,worker-1:2&tail=3 HTTP/1.1\r\nHost: [::1]:7897\r\n\r\n",
    "GET /create?strategy=AllReduce&n_worker=0&img=ubuntu&name=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 54\r\n\r\n{\"name\":\"a\",\"strategy\":\"AllReduce\",\"worker_num\":0    }",
    "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "POST /v1/jobs/absent/cancel HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n",
    "DELETE /v1/jobs/absent HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n\r\n",
    "GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
];

/// Texts to insert into requests. Some of these texts are known to break parsers.
const PIECES: [&[u8]; 26] = [
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b"\x0b",
    b"\x7f",
    b"\xff\xfe",
    b"%00",
    b"%ff",
    b"../",
    b"//",
    b"?",
    b"#",
    b"{name}",
    b"HTTP/9.9",
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: evil.example\r\n",
    b"99999999999999999999",
    b"{\"a\":[[[[[[[[",
    b"\xf0\x9f\x92\xa9",
];

/// The last request of each connection. After its answer, the master closes the connection. If the master reads this
/// text as a part of a broken request, the connection stays open until a timeout.
const LAST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
/// Number of concurrent connections. This number is large because some connections stay open until a timeout.
const AT_ONCE: usize = 300;

/// Generates random requests.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit.max(1))
    }

    /// Returns one to four requests for a connection. Each request is changed in one to three places.
    fn requests(&mut self) -> Vec<u8> {
        let count = 1 + self.below(4);
        let request = |_| {
            let mut bytes = VALID[self.below(VALID.len())].as_bytes().to_vec();
            (0..=self.below(3)).for_each(|_| self.mutate(&mut bytes));
            bytes
        };
        (0..count).flat_map(request).collect()
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let place = self.below(bytes.len());
        match self.below(6) {
            0 if !bytes.is_empty() => bytes[place] = u8::try_from(self.below(256)).expect("not a byte"),
            1 => bytes.truncate(place),
            2 => drop(bytes.drain(place..(place + self.below(20)).min(bytes.len()))),
            3 => {
                let repeated: Vec<u8> = bytes[place..].iter().take(30).copied().collect();
                let many = repeated.repeat(1 + self.below(200));
                bytes.splice(place..place, many);
            }
            _ => drop(bytes.splice(place..place, PIECES[self.below(PIECES.len())].iter().copied())),
        }
    }
}

/// Sends requests until `wanted` answers have come. Returns a summary of the answers.
fn abuse(wanted: usize) -> String {
    let scene = Scene::new("open('started', 'w').close()");
    let master = scene.master();
    let to = address(&master);
    let mut random = Random(fastrand::Rng::with_seed(4));
    let mut connections = 0;
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    runtime().block_on(async {
        let requests = std::iter::repeat_with(|| [&random.requests(), LAST].concat());
        let answers = requests.map(|bytes| async move {
            let answer = send(to, &bytes).await;
            (bytes, answer)
        });
        let mut answers = futures_util::stream::iter(answers).buffer_unordered(AT_ONCE);
        while counts.values().sum::<usize>() < wanted {
            let (bytes, answer) = answers.next().await.expect("the stream has ended");
            connections += 1;
            for status in statuses(&answer) {
                let shown = [bytes.as_slice(), &answer].map(String::from_utf8_lossy);
                assert!(status < 500, "an answer with a status of 500 or more; the request and the answer: {shown:?}");
                *counts.entry(status).or_default() += 1;
            }
        }
    });
    assert!(
        [200, 400].iter().all(|status| counts.contains_key(status)),
        "no answer with status 200, or none with 400: {counts:?}"
    );
    assert_untouched(&scene, &master);
    let answers = counts.values().sum::<usize>();
    format!("{answers} answers on {connections} connections: 0 5xx, 0 panics; by status: {counts:?}")
}

#[test]
fn malformed_requests_are_answered_without_a_5xx_or_a_panic() {
    println!("{}", abuse(1_000));
}

#[test]
#[ignore = "sends the full number of requests: --ignored"]
fn ten_thousand_malformed_requests_are_answered_without_a_5xx_or_a_panic() {
    println!("{}", abuse(10_000));
}
