//! The user's wish to leave: Ctrl-C, SIGTERM, or the end of the terminal. What it means is the caller's business.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Takes the signals from the moment it exists, so that none ends the process before it has cleaned up.
pub(crate) struct Interrupts {
    ctrl_c: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupts {
    /// Begins to listen.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            ctrl_c: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.ctrl_c.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
