//! Interrupts: Ctrl-C, SIGTERM, or the end of the terminal. The callers decide what an interrupt means, and clean up.
//! The process then ends by the same signal, so that a shell's loop ends too.

use std::fs;
use std::io;
use std::sync::OnceLock;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The first interrupt that [`Interrupts::next`] received. It is static because signals are sent to the process.
static FIRST: OnceLock<SignalKind> = OnceLock::new();

/// Catches the signals, so that callers can clean up before the process ends.
/// A signal that the parent ignores, with `nohup` or `trap '' INT`, stays ignored.
pub(crate) struct Interrupts {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
}

impl Interrupts {
    /// Starts to catch signals.
    pub(crate) fn listen() -> io::Result<Self> {
        let unless_ignored = |kind| if is_ignored(kind)? { Ok(None) } else { signal(kind).map(Some) };
        Ok(Self {
            interrupt: unless_ignored(SignalKind::interrupt())?,
            terminate: unless_ignored(SignalKind::terminate())?,
            hang_up: unless_ignored(SignalKind::hangup())?,
        })
    }

    /// Waits for the next interrupt.
    pub(crate) async fn next(&mut self) {
        let kind = tokio::select! {
            Some(()) = received(&mut self.interrupt) => SignalKind::interrupt(),
            Some(()) = received(&mut self.terminate) => SignalKind::terminate(),
            Some(()) = received(&mut self.hang_up) => SignalKind::hangup(),
            else => std::future::pending().await,
        };
        FIRST.get_or_init(|| kind);
    }
}

async fn received(signal: &mut Option<Signal>) -> Option<()> {
    signal.as_mut()?.recv().await
}

/// Ends this process by the signal that interrupted it, so that a shell sees the interrupt
/// (<https://www.cons.org/cracauer/sigint.html>). Returns if there was no interrupt.
pub(crate) fn end_if_interrupted() {
    if let Some(kind) = FIRST.get() {
        // The call fails only for unknown signals. The process then ends with its exit code.
        let _ = signal_hook::low_level::emulate_default_handler(kind.as_raw_value());
    }
}

/// Whether this process ignores a signal (`SigIgn` in proc_pid_status(5)).
fn is_ignored(kind: SignalKind) -> io::Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Ok(ignored >> (kind.as_raw_value() - 1) & 1 == 1)
}
