//! The user's wish to leave: Ctrl-C, SIGTERM, or the end of the terminal. What it means is the caller's business.

use std::fs;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Takes the signals from the moment it exists, so that none ends the process before it has cleaned up.
pub(crate) struct Interrupts {
    ctrl_c: Signal,
    terminate: Signal,
    /// None where it was ignored from the start, as `nohup` has it.
    hang_up: Option<Signal>,
}

impl Interrupts {
    /// Begins to listen.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            ctrl_c: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: if is_ignored(SignalKind::hangup())? { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.ctrl_c.recv() => {}
            _ = self.terminate.recv() => {}
            Some(_) = async { self.hang_up.as_mut()?.recv().await } => {}
        }
    }
}

/// Whether this process ignores a signal (`SigIgn` in proc_pid_status(5)).
fn is_ignored(kind: SignalKind) -> io::Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Ok(ignored >> (kind.as_raw_value() - 1) & 1 == 1)
}
