//! Tests of connections that stop in the middle of a request, send slowly, or do not read the answer. The master must
//! drop these connections, and must serve other callers in the meantime.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::Scene;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::abuse::caller::{address, assert_untouched, runtime, statuses};

/// Maximum time until a slow connection is dropped.
const DROPPED_WITHIN: Duration = Duration::from_secs(15);
/// Maximum time until a connection that does not read is dropped. The kernel drops such a connection after a minute.
const UNREAD_DROPPED_WITHIN: Duration = Duration::from_secs(120);
/// Number of requests of the connection that does not read. Their answers together exceed the kernel's buffers.
const UNREAD_REQUESTS: usize = 1_000;
/// Maximum time until a complete request is answered.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of connections that are being opened at the same time. With more connections, the kernel's queue
/// of new connections could be full, and the kernel retries a connection only after seconds.
const CONNECTING: usize = 256;
/// What slow connections send at first. Except for the last text, these are beginnings of requests.
const HALVES: [&str; 5] = [
    "",
    "GET /v1/jo",
    "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le",
    "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
    "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
];

/// Raises the limit of descriptors to the maximum, for this process and the master that it starts. Returns the limit.
fn take_all_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .expect("cannot raise the limit");
    limit.maximum.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}

/// Opens a slow connection, and returns the time until the master drops it. The connections have 50 different source
/// addresses, because the number of ports of an address is limited.
async fn slow(to: SocketAddr, index: usize, connecting: Arc<Semaphore>) -> Duration {
    let turn = connecting.acquire().await.expect("the semaphore is closed");
    let socket = TcpSocket::new_v4().expect("no free descriptor");
    let last = u8::try_from(2 + index % 50).expect("the address has a number above 255");
    socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0)).expect("cannot bind the address");
    let begin = Instant::now();
    let stream = socket.connect(to).await.expect("cannot connect to the master");
    drop(turn);
    let (mut reader, mut writer) = stream.into_split();
    let _ = writer.write_all(HALVES[index % HALVES.len()].as_bytes()).await;
    let read = async {
        let mut answer = vec![];
        let _ = reader.read_to_end(&mut answer).await;
    };
    let drip = async {
        let mut tick = interval(Duration::from_secs(1));
        // Half of the connections send another byte each second. The other half send nothing more.
        while index.is_multiple_of(2) && writer.write_all(b"x").await.is_ok() {
            tick.tick().await;
        }
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = read => {}
        () = drip => {}
        () = tokio::time::sleep(DROPPED_WITHIN) => panic!("connection {index} was not dropped in time"),
    }
    begin.elapsed()
}

/// Sends complete requests, each on its own connection, until `end` is true. Returns the times of the answers, sorted.
async fn legitimate(to: SocketAddr, mut end: watch::Receiver<bool>) -> Vec<Duration> {
    let mut times = vec![];
    let mut tick = interval(Duration::from_millis(20));
    while !*end.borrow_and_update() {
        tick.tick().await;
        let begin = Instant::now();
        let answer = timeout(ANSWERED_WITHIN, ask(to)).await.expect("a complete request was not answered in time");
        assert_eq!(statuses(&answer), [200], "{}", String::from_utf8_lossy(&answer));
        times.push(begin.elapsed());
    }
    times.sort();
    times
}

async fn ask(to: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.expect("cannot connect to the master");
    let request = b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.expect("cannot send to the master");
    let mut answer = vec![];
    stream.read_to_end(&mut answer).await.expect("cannot read the master's answer");
    answer
}

/// Opens `count` slow connections. Returns a summary, which also shows the times of complete requests in the meantime.
fn abuse(count: usize) -> String {
    let most = take_all_descriptors();
    assert!(
        count <= most / 4 * 3,
        "{count} connections are too many for {most} descriptors: raise the limit (ulimit -Hn)"
    );
    let scene = Scene::new("");
    let master = scene.master();
    let to = address(&master);
    let (times, dropped) = runtime().block_on(async {
        let (end, is_over) = watch::channel(false);
        let legitimate = tokio::spawn(legitimate(to, is_over));
        let connecting = Arc::new(Semaphore::new(CONNECTING));
        let mut slow_ones: JoinSet<Duration> =
            (0..count).map(|index| slow(to, index, Arc::clone(&connecting))).collect();
        let mut dropped = vec![];
        while let Some(time) = slow_ones.join_next().await {
            dropped.push(time.expect("the task of a slow connection has panicked"));
        }
        end.send_replace(true);
        (legitimate.await.expect("the task of the complete requests has panicked"), dropped)
    });
    assert_eq!(dropped.len(), count);
    assert_untouched(&scene, &master);
    let longest = dropped.iter().max().expect("no connection was dropped");
    let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let metrics = scene.curl(&[&format!("{}/metrics", master.url)]);
    let counted: Vec<&str> = metrics.lines().filter(|line| line.starts_with("muster_http_connections")).collect();
    format!(
        "{count} slow connections: all dropped, the last after {:.1} s; {} whole requests meanwhile: all answered, median {}, \
         p99 {}, longest {}\n{}",
        longest.as_secs_f64(),
        times.len(),
        milliseconds(times[times.len() / 2]),
        milliseconds(times[times.len() * 99 / 100]),
        milliseconds(times[times.len() - 1]),
        counted.join("\n"),
    )
}

#[test]
fn slow_connections_are_dropped_while_other_callers_are_answered() {
    println!("{}", abuse(500));
}

#[test]
#[ignore = "takes a minute: --ignored"]
fn a_caller_that_does_not_read_its_answers_is_dropped() {
    let scene = Scene::new("");
    let master = scene.master();
    let begin = Instant::now();
    runtime().block_on(async {
        let mut stream = TcpStream::connect(address(&master)).await.expect("cannot connect to the master");
        let asked = "GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".repeat(UNREAD_REQUESTS);
        stream.write_all(asked.as_bytes()).await.expect("cannot send to the master");
        let mut tick = interval(Duration::from_secs(1));
        let refused = async {
            while stream.write_all(b"G").await.is_ok() {
                tick.tick().await;
            }
        };
        timeout(UNREAD_DROPPED_WITHIN, refused).await.expect("the connection was not dropped in time");
    });
    println!("dropped after {:.1} s", begin.elapsed().as_secs_f64());
    assert_untouched(&scene, &master);
}

#[test]
#[ignore = "opens the full number of connections: --ignored"]
fn ten_thousand_slow_connections_are_dropped_while_other_callers_are_answered() {
    println!("{}", abuse(10_000));
}
