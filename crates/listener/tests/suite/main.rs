//! Tests of a server with room for two connections.

use std::convert::Infallible;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use listener::{ConnectionSeat, Limits, SeatChange};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

struct Place {
    address: SocketAddr,
    changes: Arc<Mutex<Vec<SeatChange>>>,
    /// The number of requests that have reached `/wait`.
    asked: watch::Receiver<u32>,
    /// When this is true, `/wait` answers.
    answers: watch::Sender<bool>,
}

impl Place {
    async fn with_room_for_two(unkept: Option<Duration>) -> Self {
        let (answers, may_answer) = watch::channel(false);
        let (counter, asked) = watch::channel(0);
        let respond = move |request: Request<Incoming>, seat: Arc<ConnectionSeat>| {
            let (counter, may_answer) = (counter.clone(), may_answer.clone());
            async move {
                if request.uri().path() == "/kept" {
                    seat.keep();
                    return Ok(Response::new(Full::from("kept").map_frame(|frame| frame).boxed()));
                }
                let answer = answer(request, Arc::clone(&seat), counter, may_answer);
                seat.while_answering(answer).await.map(|answer| answer.map(BodyExt::boxed))
            }
        };
        let socket = listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("cannot bind");
        let address = socket.local_addr().expect("no address");
        let changes = Arc::<Mutex<Vec<SeatChange>>>::default();
        let noted = Arc::clone(&changes);
        let limits = Limits { connections: 2, head_bytes: 16 * 1024, headers: 8, unkept };
        let observe = move |change| noted.lock().expect("poisoned").push(change);
        tokio::spawn(listener::serve(socket, limits, observe, respond, pending()));
        Self { address, changes, asked, answers }
    }

    async fn connect(&self, begin: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("cannot connect");
        stream.write_all(begin.as_bytes()).await.expect("cannot write");
        stream
    }

    fn has_seen(&self, change: SeatChange) -> bool {
        self.changes.lock().expect("poisoned").contains(&change)
    }
}

async fn answer(
    request: Request<Incoming>,
    seat: Arc<ConnectionSeat>,
    counter: watch::Sender<u32>,
    mut may_answer: watch::Receiver<bool>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = match request.uri().path() {
        "/wait" => {
            counter.send_modify(|count| *count += 1);
            let _ = may_answer.wait_for(|may_answer| *may_answer).await;
            "at last"
        }
        "/body" => {
            let _awaited = seat.awaited();
            request.into_body().collect().await.map_or("broken off", |_| "read")
        }
        _ => "at once",
    };
    Ok(Response::new(Full::from(text)))
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
    String::from_utf8(answer).expect("the answer is not UTF-8")
}

#[tokio::test]
async fn the_connection_that_waits_longest_is_closed_for_a_new_one() {
    let place = Place::with_room_for_two(None).await;
    let mut slow = [place.connect("GET / HT").await, place.connect("POST /body HTTP/1.1\r\nHo").await];
    for _ in 0..10 {
        assert!(read(&mut place.connect(&request("/")).await).await.contains("at once"));
    }
    assert_eq!(read(&mut slow[0]).await, "");
    assert!(place.has_seen(SeatChange::Evicted) && !place.has_seen(SeatChange::Refused));
}

#[tokio::test]
async fn a_connection_without_its_whole_body_is_closed_for_a_new_one() {
    let place = Place::with_room_for_two(None).await;
    let head = "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf";
    let mut slow = [place.connect(head).await, place.connect(head).await];
    for _ in 0..3 {
        // The server refuses new connections until it waits for both bodies.
        while !read(&mut place.connect(&request("/")).await).await.contains("at once") {}
    }
    assert_eq!(read(&mut slow[0]).await, "");
}

#[tokio::test]
async fn a_connection_that_is_being_answered_is_not_closed_for_a_new_one() {
    let mut place = Place::with_room_for_two(None).await;
    let mut two = [place.connect(&request("/wait")).await, place.connect(&request("/wait")).await];
    place.asked.wait_for(|count| *count == 2).await.unwrap();
    assert_eq!(read(&mut place.connect(&request("/")).await).await, "", "the server answered on a third connection");
    place.answers.send_replace(true);
    for stream in &mut two {
        assert!(read(stream).await.contains("at last"));
    }
    while !read(&mut place.connect(&request("/")).await).await.contains("at once") {}
}

#[tokio::test]
async fn a_kept_connection_is_never_closed_for_a_new_one() {
    let place = Place::with_room_for_two(None).await;
    let kept = "GET /kept HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut two = [place.connect(kept).await, place.connect(kept).await];
    let mut answer = [0; 16];
    for stream in &mut two {
        stream.read_exact(&mut answer).await.unwrap();
    }
    assert_eq!(read(&mut place.connect(&request("/")).await).await, "", "the server answered on a third connection");
    assert!(place.has_seen(SeatChange::Refused) && !place.has_seen(SeatChange::Evicted));
}

#[tokio::test]
async fn a_connection_that_is_not_kept_in_time_is_closed() {
    let place = Place::with_room_for_two(Some(Duration::from_millis(100))).await;
    let mut kept = place.connect("GET /kept HTTP/1.1\r\nHost: a\r\n\r\n").await;
    kept.read_exact(&mut [0; 16]).await.unwrap();
    // This request would be answered only later.
    assert_eq!(
        read(&mut place.connect("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").await).await,
        ""
    );
    kept.write_all(request("/kept").as_bytes()).await.unwrap();
    assert!(read(&mut kept).await.contains("kept"));
}
