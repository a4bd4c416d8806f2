//! Limits the number of connections. At the limit, a new connection replaces the oldest unauthenticated
//! connection.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

/// Maximum number of connections. A master needs three. With the usual limit of 1024 descriptors, enough descriptors
/// remain for logs and pipes.
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

/// An accepted connection.
#[derive(Debug)]
struct Connection {
    authenticated: Authenticated,
    /// Dropping this sender evicts the connection. `is_closed` is true when the connection has ended by itself.
    alive: oneshot::Sender<Infallible>,
}

/// The part of a connection that belongs to the task that serves it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) authenticated: Authenticated,
    /// Resolves when the connection must make room for another.
    pub(super) evicted: oneshot::Receiver<Infallible>,
}

impl Connections {
    /// Adds a connection. At the limit, first closes the oldest unauthenticated connection. If all are authenticated,
    /// returns `None`.
    pub(super) fn admit(&mut self) -> Option<Slot> {
        if self.0.len() >= CONNECTIONS_MAX {
            // An ended connection can be removed too. The search stops at the first match, because a search through all
            // connections would be too slow in a flood.
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
