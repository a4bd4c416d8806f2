//! Raw bytes at the agent's port: malformed requests, bad lengths, and connections that stay silent. Valid requests are
//! answered meanwhile.

use fastrand::Rng;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Agent, PATIENCE, wait_until};

/// Number of malformed requests, and of slow connections.
const MALFORMED: usize = 5000;
const SLOW: usize = 1500;

/// Valid requests, which the tests change at random. `/finish` is missing, because it ends the agent.
const PROPER: [&str; 9] = [
    "GET /status HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "GET /status?after=1&wait=0 HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
    "GET /logs?stream=stderr&offset=3&follow=false HTTP/1.1\r\nhost: localhost\r\nAccept: */*\r\n\r\n",
    "POST /config?generation=1.1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 13\r\n\r\n{\"A\":\"1 2 3\"}",
    "POST /config HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{\"A\"\r\n5;x=y\r\n:\"1\"}\r\n0\r\n\r\n",
    "POST /config HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    "GET /run?generation=1.1 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer abc\r\n\r\n",
    "POST /stop?grace=0.5&generation=1.1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n",
    "GET /healthz HTTP/1.0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
];

/// Bytes that have a meaning in some part of a request.
const SPICES: [&[u8]; 16] = [
    b"\r\n",
    b"\n",
    b"\0",
    b" ",
    b":",
    b"%00",
    b"\xff\xfe",
    b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"content-length: 18446744073709551616\r\n",
    b"ffffffffffffffff\r\n",
    b"-1",
    b"HTTP/9.9",
    b"GET ",
    b"?generation=9.9&",
    b"\"",
];

fn mutated(dice: &mut Rng) -> Vec<u8> {
    let mut bytes = PROPER[dice.usize(..PROPER.len())].as_bytes().to_vec();
    for _ in 0..=dice.usize(..4) {
        let at = dice.usize(..bytes.len());
        match dice.usize(..7) {
            0 => bytes[at] = u8::try_from(dice.usize(..256)).unwrap(),
            1 => drop(bytes.remove(at)),
            2 => bytes.truncate(at + 1),
            3 => drop(bytes.splice(at..at, SPICES[dice.usize(..SPICES.len())].iter().copied())),
            4 => {
                let end = (at + dice.usize(..20)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            5 => drop(bytes.splice(at..at, b"x".repeat(dice.usize(..40_000)))),
            _ => bytes.extend_from_slice(PROPER[dice.usize(..PROPER.len())].as_bytes()),
        }
        if bytes.is_empty() {
            bytes.push(b'G');
        }
    }
    bytes
}

/// Sends only these bytes, and returns the answer.
fn exchange(agent: &Agent, bytes: &[u8]) -> Vec<u8> {
    let stream = send(agent, bytes);
    let _ = stream.shutdown(Shutdown::Write);
    until_closed(stream)
}

fn send(agent: &Agent, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(agent.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The agent may refuse the request, and close the connection, before it has read all bytes.
    let _ = stream.write_all(bytes);
    stream
}

/// Reads until the agent closes or resets the connection.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{}", String::from_utf8_lossy(&answer));
    }
    answer
}

/// The status codes in these bytes.
fn codes(answer: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answer);
    text.split("HTTP/1.").skip(1).filter_map(|answer| answer.get(2..5)?.parse().ok()).collect()
}

#[test]
fn no_malformed_request_causes_a_server_error() {
    let agent = Agent::of_shell("true");
    let mut dice = Rng::with_seed(2);
    let mut counts = std::collections::BTreeMap::<u16, usize>::new();
    for _ in 0..MALFORMED {
        let bytes = mutated(&mut dice);
        for code in codes(&exchange(&agent, &bytes)) {
            assert!(code < 500, "the answer has status {code} for {:?}", String::from_utf8_lossy(&bytes));
            *counts.entry(code).or_default() += 1;
        }
    }
    eprintln!("{} requests: {counts:?}", MALFORMED);
    assert!(counts[&200] > 0 && counts[&400] > 0, "no answer with status 200 or none with 400: {counts:?}");
    assert_eq!(agent.get("/status").status, 200);
}

#[test]
fn a_bad_length_or_a_transfer_encoding_is_refused_and_no_later_request_is_read() {
    let agent = Agent::of_shell("true");
    let chunked = "2\r\n{}\r\n0\r\n\r\n";
    let next = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for headers in [
        "content-length: 2\r\ncontent-length: 3\r\n",
        "content-length: 2, 3\r\n",
        "content-length: +2\r\n",
        "content-length: 0x2\r\n",
        "content-length: -1\r\n",
        "content-length: 99999999999999999999\r\n",
        "content-length: 12\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\nContent-Length: 12\r\n",
        "content-length: 12\r\ncontent-length: 12\r\nTransfer-Encoding: chunked\r\n",
        "transfer-encoding: chunked\r\n",
        "transfer-encoding: gzip\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding : chunked\r\n",
        " transfer-encoding: chunked\r\n",
    ] {
        let request = format!("POST /config HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n{chunked}{next}");
        let answers = |requests: &str| codes(&until_closed(send(&agent, requests.as_bytes())));
        assert_eq!(answers(&request), [400], "{headers}");
        assert_eq!(answers(&format!("{next}{request}")), [200, 400], "{headers}");
    }
    assert_eq!(agent.status().seq, 1, "a refused request has changed the status");
    let proper = "POST /config HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    let last = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let stream = send(&agent, format!("{proper}{proper}{last}").as_bytes());
    assert_eq!(codes(&until_closed(stream)), [200; 3], "wrong answers to three valid requests");
}

#[test]
fn a_head_that_is_too_large_or_has_too_many_headers_is_refused() {
    let agent = Agent::of_shell("true");
    let long = format!("GET /status HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET /status HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(1000));
    let path = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    for request in [long, many, path] {
        let codes = codes(&exchange(&agent, request.as_bytes()));
        assert!(codes == [431] || codes == [414] || codes.is_empty(), "answered with {codes:?}");
    }
    assert_eq!(agent.get("/status").status, 200);
}

/// Whether the other side has closed this connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Opens connections that send nothing, half a head, or a head without its body. Returns the connections that the agent
/// has not closed meanwhile.
fn flood(agent: &Agent, connections: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for number in 0..connections {
        let mut stream = TcpStream::connect(agent.address).unwrap();
        let beginning = ["", "GET /sta", "POST /config HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"][number % 3];
        // The agent may have closed the connection already.
        let _ = stream.write_all(beginning.as_bytes());
        open.push(stream);
        if number % 100 == 0 {
            open.retain_mut(|stream| !is_closed(stream));
        }
    }
    open
}

#[test]
fn silent_connections_are_closed_and_valid_requests_are_answered() {
    // The SHA-256 of "abc".
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let agent = Agent::start(&["--token-sha256", hash], &["true"]);
    let ask = |path: &str| agent.request_with("authorization: Bearer abc\r\n", "GET", path, "");
    let (mut open, mut waits) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        let poll = scope.spawn(|| ask("/status?after=1&wait=60").status);
        let flood = scope.spawn(|| flood(&agent, SLOW));
        while !flood.is_finished() {
            let asked = Instant::now();
            assert_eq!(ask("/status").status, 200);
            waits.push(asked.elapsed());
            thread::park_timeout(Duration::from_millis(5));
        }
        open.extend(flood.join().unwrap());
        assert_eq!(agent.request_with("authorization: Bearer abc\r\n", "POST", "/config", "{}").status, 200);
        assert_eq!(poll.join().unwrap(), 200, "wrong answer to the long poll that waited during the flood");
    });
    waits.sort();
    let (p99, slowest) = (waits[waits.len() * 99 / 100], waits[waits.len() - 1]);
    eprintln!("{SLOW} slow connections; {} valid requests, p99 {p99:?}, slowest {slowest:?}", waits.len());
    assert!(slowest < Duration::from_secs(5), "the slowest valid request took {slowest:?}");
    let last = Instant::now();
    wait_until("the end of the slow connections", || {
        open.retain_mut(|stream| !is_closed(stream));
        open.is_empty().then_some(())
    });
    eprintln!("all slow connections were closed {:?} after the last was opened", last.elapsed());
    assert!(last.elapsed() < Duration::from_secs(15), "slow connections stayed open for {:?}", last.elapsed());
}

#[test]
fn a_connection_with_only_refused_requests_is_closed() {
    let agent = Agent::start(&["--token-sha256", &"0".repeat(64)], &["true"]);
    let mut stream = TcpStream::connect(agent.address).unwrap();
    let began = Instant::now();
    // Every request is complete and refused, so the time limit for a head does not apply.
    while stream.write_all(b"GET /status HTTP/1.1\r\nhost: localhost\r\n\r\n").is_ok() && !is_closed(&mut stream) {
        assert!(began.elapsed() < Duration::from_secs(15), "still open after {:?}", began.elapsed());
        thread::park_timeout(Duration::from_millis(200));
    }
}

#[test]
fn a_request_whose_body_does_not_arrive_is_refused() {
    let agent = Agent::of_shell("true");
    let mut stream = TcpStream::connect(agent.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"POST /config HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{").unwrap();
    let asked = Instant::now();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(codes(&answer), [400]);
    assert!(asked.elapsed() < Duration::from_secs(15), "refused only after {:?}", asked.elapsed());
}
