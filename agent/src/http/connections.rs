//! How many connections there may be, and who has to go when more come: whoever has not yet shown that it may ask.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

/// Connections at the same time. A master needs three; the usual limit of 1024 descriptors leaves room for exec.py's.
const CONNECTIONS_MAX: usize = 512;

/// Whether a connection has carried a request that was let in.
#[derive(Debug, Clone, Default)]
pub(super) struct Standing(Arc<AtomicBool>);

impl Standing {
    /// It has.
    pub(super) fn prove(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_proven(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The connections that have come, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections(VecDeque<Seat>);

/// What one connection has of the limit. To drop it is to end the connection.
#[derive(Debug)]
struct Seat {
    standing: Standing,
    /// Closed when the connection has ended by itself.
    lifeline: oneshot::Sender<Infallible>,
}

/// A connection's side of its seat.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) standing: Standing,
    /// Returns when somebody else needs the seat.
    pub(super) evicted: oneshot::Receiver<Infallible>,
}

impl Connections {
    /// A seat for one more, at the expense of the oldest stranger if need be.
    pub(super) fn seat(&mut self) -> Option<Guest> {
        if self.0.len() >= CONNECTIONS_MAX {
            // One that has ended is as good, and to look for it among all would cost more than a flood does.
            let may_go = |seat: &Seat| seat.lifeline.is_closed() || !seat.standing.is_proven();
            let place = self.0.iter().position(may_go)?;
            self.0.remove(place);
        }
        let (lifeline, evicted) = oneshot::channel();
        let standing = Standing::default();
        self.0.push_back(Seat { standing: standing.clone(), lifeline });
        Some(Guest { standing, evicted })
    }
}
