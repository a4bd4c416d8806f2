//! Tests how long the master waits for a slow client. Time is virtual: it advances only while all tasks wait.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::service::harness::{Master, in_time, statuses};

/// Sends these bytes. Returns the answer, and the time until the master closed the connection.
async fn dropped_after(master: &Master, begin: &str) -> (String, Duration) {
    let url = master.url("");
    let mut stream = TcpStream::connect(url.strip_prefix("http://").expect("not a URL")).await.expect("cannot connect");
    let began = Instant::now();
    stream.write_all(begin.as_bytes()).await.expect("the master does not read");
    let mut answer = String::new();
    // If the master closes the connection before it has read all bytes, reading the answer fails with a reset.
    let _ = in_time("the master closes the connection", stream.read_to_string(&mut answer)).await;
    (answer, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_head_and_an_idle_connection_time_out_after_5_s() {
    let master = Master::serving(None).await;
    for begin in ["", "GET /v1/jo", "GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"] {
        let (answer, time) = dropped_after(&master, begin).await;
        assert_eq!((answer.as_str(), time.as_secs()), ("", 5), "{begin:?}");
    }
    let (answer, time) = dropped_after(&master, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await;
    assert_eq!((statuses(&answer), time.as_secs()), (vec![200], 5), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_body_times_out_after_10_s_even_if_parts_of_it_arrive() {
    let master = Master::serving(None).await;
    let head = "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{";
    let (answer, time) = dropped_after(&master, head).await;
    assert_eq!((statuses(&answer), time.as_secs()), (vec![408], 10), "{answer}");

    let url = master.url("");
    let mut stream = TcpStream::connect(url.strip_prefix("http://").expect("not a URL")).await.expect("cannot connect");
    let began = Instant::now();
    stream.write_all(head.as_bytes()).await.expect("the master does not read");
    let (mut reader, mut writer) = stream.into_split();
    let drip = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        while writer.write_all(b" ").await.is_ok() {
            tick.tick().await;
        }
    });
    let mut answer = vec![];
    let _ = in_time("the master closes the connection", reader.read_to_end(&mut answer)).await;
    drip.abort();
    assert_eq!((statuses(&String::from_utf8_lossy(&answer)), began.elapsed().as_secs()), (vec![408], 10));
}
