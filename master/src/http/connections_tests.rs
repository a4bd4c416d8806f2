//! Tests of `connections.rs`, with room for two connections.

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::tally::Tally;

use super::*;

struct Place {
    address: std::net::SocketAddr,
    metrics: Arc<Metrics>,
    /// The number of requests that have reached `/wait`.
    asked: watch::Receiver<u32>,
    /// When this is true, `/wait` answers.
    answers: watch::Sender<bool>,
}

impl Place {
    async fn with_room_for_two() -> Self {
        let metrics = Metrics::new(&Tally::default(), None);
        let (answers, may_answer) = watch::channel(false);
        let (counter, asked) = watch::channel(0);
        let wait = move || {
            counter.send_modify(|count| *count += 1);
            let mut may_answer = may_answer.clone();
            async move {
                let _ = may_answer.wait_for(|may_answer| *may_answer).await;
                "at last"
            }
        };
        let body = |request: axum::extract::Request| async move {
            let _awaited = request.extensions().get::<Arc<ConnectionSeat>>().map(ConnectionSeat::awaited);
            request.into_body().collect().await.map(|_| "read").map_err(|_| "broken off")
        };
        let router = Router::new().route("/", get(|| async { "at once" })).route("/wait", get(wait));
        let router = router.route("/body", post(body));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let all = Arc::new(Connections { most: 2, table: Mutex::default(), metrics: Arc::clone(&metrics) });
        tokio::spawn(async move {
            let graceful = GracefulShutdown::new();
            while let Ok((stream, _)) = listener.accept().await {
                all.serve(stream, &router, &graceful);
            }
        });
        Self { address, metrics, asked, answers }
    }

    async fn connect(&self, begin: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        stream
    }
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

async fn read(stream: &mut TcpStream) -> String {
    let mut answer = vec![];
    // The result may be an error: if the server closes a connection that has unread bytes, the connection is reset.
    let _ = timeout(Duration::from_secs(60), stream.read_to_end(&mut answer))
        .await
        .expect("the server did not close the connection within 60 s");
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn the_connection_that_waits_longest_is_closed_for_a_new_one() {
    let place = Place::with_room_for_two().await;
    let mut slow = [place.connect("GET / HT").await, place.connect("POST /body HTTP/1.1\r\nHo").await];
    for _ in 0..10 {
        assert!(read(&mut place.connect(&request("/")).await).await.ends_with("at once"));
    }
    assert_eq!(read(&mut slow[0]).await, "");
    assert_eq!(place.metrics.connections_refused.get(), 0);
    assert!(place.metrics.connections_evicted.get() >= 1);
}

#[tokio::test]
async fn a_connection_without_its_whole_body_is_closed_for_a_new_one() {
    let place = Place::with_room_for_two().await;
    let head = "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf";
    let mut slow = [place.connect(head).await, place.connect(head).await];
    for _ in 0..3 {
        // The server refuses new connections until it waits for both bodies.
        while !read(&mut place.connect(&request("/")).await).await.ends_with("at once") {}
    }
    assert_eq!(read(&mut slow[0]).await, "");
}

#[tokio::test]
async fn a_connection_that_is_being_answered_is_not_closed_for_a_new_one() {
    let mut place = Place::with_room_for_two().await;
    let mut two = [place.connect(&request("/wait")).await, place.connect(&request("/wait")).await];
    place.asked.wait_for(|count| *count == 2).await.unwrap();
    assert_eq!(read(&mut place.connect(&request("/")).await).await, "", "the server answered on a third connection");
    place.answers.send_replace(true);
    for stream in &mut two {
        assert!(read(stream).await.ends_with("at last"));
    }
    while !read(&mut place.connect(&request("/")).await).await.ends_with("at once") {}
}
