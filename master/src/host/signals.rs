//! The events that stop a master: SIGINT, SIGTERM, and the end of stdin if a client supervises the master.

use anyhow::Context;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that stop a master. A signal that arrives between two waits is not lost.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    is_supervised: bool,
}

impl Signals {
    /// Installs the handlers. With `is_supervised`, the end of stdin also stops the master.
    pub(crate) fn install(is_supervised: bool) -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            is_supervised,
        })
    }

    /// Waits until the master must stop, and returns the reason.
    pub(crate) async fn told_to_end(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "interrupted",
            _ = self.terminate.recv() => "terminated",
            () = end_of_stdin(), if self.is_supervised => "stdin ended",
        }
    }
}

async fn end_of_stdin() {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 64];
    while let Ok(1..) = stdin.read(&mut buffer).await {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_signal_between_two_waits_is_not_lost() {
        let mut signals = Signals::install(false).unwrap();
        let first = timeout(Duration::ZERO, signals.told_to_end()).await;
        assert!(first.is_err(), "the wait ended before a signal was sent: {first:?}");
        kill_process(getpid(), Signal::TERM).unwrap();
        let second = timeout(Duration::from_secs(60), signals.told_to_end()).await;
        assert_eq!(second, Ok("terminated"));
    }
}
