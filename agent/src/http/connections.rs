//! Limits the number of connections. When there are too many, an unauthenticated one is closed for the next.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

/// Connections at the same time. A master needs three; the usual limit of 1024 descriptors leaves room for exec.py's.
const CONNECTIONS_MAX: usize = 512;

/// Whether a connection has carried an authenticated request.
#[derive(Debug, Clone, Default)]
pub(super) struct Authenticated(Arc<AtomicBool>);

impl Authenticated {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The accepted connections, oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections(VecDeque<Connection>);

/// An accepted connection. Dropping it closes the connection.
#[derive(Debug)]
struct Connection {
    authenticated: Authenticated,
    /// Closed when the connection has ended by itself.
    alive: oneshot::Sender<Infallible>,
}

/// The same connection for the task that serves it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) authenticated: Authenticated,
    /// Returns when the connection must make room for another.
    pub(super) evicted: oneshot::Receiver<Infallible>,
}

impl Connections {
    /// Counts one more connection, and closes the oldest unauthenticated one if there are too many. `None` if all are
    /// authenticated.
    pub(super) fn admit(&mut self) -> Option<Slot> {
        if self.0.len() >= CONNECTIONS_MAX {
            // One that has ended does as well. To search all for those would cost more than a flood of connections does.
            let can_go = |connection: &Connection| connection.alive.is_closed() || !connection.authenticated.get();
            let place = self.0.iter().position(can_go)?;
            self.0.remove(place);
        }
        let (alive, evicted) = oneshot::channel();
        let authenticated = Authenticated::default();
        self.0.push_back(Connection { authenticated: authenticated.clone(), alive });
        Some(Slot { authenticated, evicted })
    }
}
