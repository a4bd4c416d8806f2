//! The table of open connections: which connection is closed if there are too many.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Body;
use tokio::sync::watch;

/// A change of the number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeatChange {
    /// So many connections are open.
    Open(usize),
    /// A new connection was closed, because no other connection could be closed for it.
    Refused,
    /// A connection was closed to make room for a new one.
    Evicted,
}

/// Is told each change, while a lock is held.
type Observer = Box<dyn Fn(SeatChange) + Send + Sync>;

/// All open connections.
pub(crate) struct ConnectionTable {
    most: usize,
    observe: Observer,
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    open: usize,
    /// The number that was given last to a waiting connection. The connection with the lowest number is closed first.
    newest_place: u64,
    /// True is sent to the connection that is closed.
    waiting: BTreeMap<u64, watch::Sender<bool>>,
}

/// One open connection. In the beginning it waits: it can be closed for a new connection.
pub struct ConnectionSeat {
    table: Arc<ConnectionTable>,
    /// Whether the connection must be closed for a new one.
    evicted: watch::Sender<bool>,
    place: AtomicU64,
}

/// Calls the function with the connection when it is dropped.
struct WhenDropped(Arc<ConnectionSeat>, fn(&ConnectionSeat));

impl ConnectionTable {
    pub(crate) fn new(most: usize, observe: Observer) -> Arc<Self> {
        Arc::new(Self { most, observe, seats: Mutex::default() })
    }

    /// Adds a connection. At the limit, first closes the connection that has waited longest. `None` if none waits.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<Arc<ConnectionSeat>> {
        let mut seats = self.lock();
        if seats.open >= self.most {
            let Some((_, longest)) = seats.waiting.pop_first() else {
                (self.observe)(SeatChange::Refused);
                return None;
            };
            longest.send_replace(true);
            seats.open -= 1;
            (self.observe)(SeatChange::Evicted);
        }
        seats.open += 1;
        (self.observe)(SeatChange::Open(seats.open));
        drop(seats);
        let seat = ConnectionSeat { table: Arc::clone(self), evicted: watch::Sender::new(false), place: 0.into() };
        seat.wait();
        Some(Arc::new(seat))
    }

    /// The table stays usable after a panic.
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionSeat {
    /// From now on, this connection cannot be closed for a new one.
    pub fn keep(&self) {
        self.table.lock().waiting.remove(&self.place.load(Ordering::Relaxed));
    }

    /// Until the returned value is dropped, this connection can be closed for a new one.
    pub fn awaited(self: &Arc<Self>) -> impl Sized + use<> {
        self.wait();
        WhenDropped(Arc::clone(self), Self::keep)
    }

    /// Keeps the connection until the whole answer was sent. Afterwards the connection waits for the next request.
    ///
    /// # Errors
    /// The error of `answer`.
    pub async fn while_answering<B: Body, E>(
        self: Arc<Self>,
        answer: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<impl Body<Data = B::Data, Error = B::Error>>, E> {
        self.keep();
        let answering = WhenDropped(self, Self::wait);
        let until_its_end = |body: B| {
            body.map_frame(move |frame| {
                let _ = &answering;
                frame
            })
        };
        Ok(answer.await?.map(until_its_end))
    }

    /// From now on, this connection can be closed for a new one. Connections that have waited longer are closed first.
    fn wait(&self) {
        let mut seats = self.table.lock();
        if !*self.evicted.borrow() {
            seats.newest_place += 1;
            self.place.store(seats.newest_place, Ordering::Relaxed);
            let place = seats.newest_place;
            seats.waiting.insert(place, self.evicted.clone());
        }
    }

    pub(crate) fn is_kept(&self) -> bool {
        !self.table.lock().waiting.contains_key(&self.place.load(Ordering::Relaxed))
    }

    /// Resolves when the connection must be closed for a new one.
    pub(crate) async fn evicted(&self) {
        // The sender is in `self`, so it is not dropped.
        let _ = self.evicted.subscribe().wait_for(|is_evicted| *is_evicted).await;
    }
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        let mut seats = self.table.lock();
        seats.waiting.remove(&self.place.load(Ordering::Relaxed));
        // For an evicted connection, the eviction has already lowered the count.
        if !*self.evicted.borrow() {
            seats.open -= 1;
        }
        (self.table.observe)(SeatChange::Open(seats.open));
    }
}

impl Drop for WhenDropped {
    fn drop(&mut self) {
        (self.1)(&self.0);
    }
}
