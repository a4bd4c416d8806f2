//! Interrupts: Ctrl-C, SIGTERM, or the end of the terminal. The callers decide what an interrupt means, and clean up.
//! The process then ends by the same signal, so that a shell's loop ends too.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The first interrupt that [`Interrupts::next`] received. It is static because signals are sent to the process.
static FIRST: OnceLock<SignalKind> = OnceLock::new();

/// Catches the signals, so that callers can clean up before the process ends.
/// A signal that the parent ignores, with `nohup` or `trap '' INT`, stays ignored.
pub(crate) struct Interrupts(Vec<(SignalKind, Signal)>);

impl Interrupts {
    /// Starts to catch signals.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut caught = Vec::new();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            if !is_ignored(kind)? {
                caught.push((kind, signal(kind)?));
            }
        }
        Ok(Self(caught))
    }

    /// Waits for the next interrupt.
    pub(crate) async fn next(&mut self) {
        let kind = poll_fn(|task| {
            let received = |(kind, signal): &mut (SignalKind, Signal)| signal.poll_recv(task).map(|_| *kind);
            self.0.iter_mut().map(received).find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        let kind = kind.await;
        FIRST.get_or_init(|| kind);
    }
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
