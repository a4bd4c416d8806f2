//! The socket to the helper `muster.py` in a run. `python/README.md` describes the agent's part.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::mem;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use protocol::progress::Progress;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

/// Maximum bytes of a line, newline included.
pub(crate) const LINE_BYTES: usize = 64 * 1024;

/// Maximum bytes of one read.
const PIECE_BYTES: usize = 8 * 1024;

/// Pause after each read. So the agent parses at most 400 KiB a second, even if a script writes without end.
const READ_PAUSE: Duration = Duration::from_millis(20);

/// Asks the script to leave.
const LEAVE: &[u8] = b"{\"notice\": {\"leave\": true}}\n";

/// Maximum number of reads after the end of a run. There is a limit because a process outside the run that received the
/// socket may write for ever.
const LAST_READS: usize = 64;

/// The agent's end of the socket of one run, and what the helper has reported.
#[derive(Debug, Default)]
pub(super) struct Helper {
    /// `None` when the socket is closed.
    stream: Option<UnixStream>,
    /// The received beginning of a line.
    received: Vec<u8>,
    status: Option<Progress>,
    /// When to read again.
    read_at: Option<Instant>,
    /// Whether a report was ignored.
    has_ignored: bool,
    /// Whether the script was asked to leave.
    has_asked: bool,
    /// The newest notice, until it is sent. It waits for the helper's first message, and for room in the socket.
    notice: Option<Vec<u8>>,
    /// The unsent rest of a line that was sent in part.
    unsent: Vec<u8>,
}

impl Helper {
    /// Creates the socket of a run. Also returns the end of the socket that the run inherits.
    pub(super) fn open() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok((Self { stream: Some(UnixStream::from_std(ours)?), ..Self::default() }, theirs.into()))
    }

    /// What the helper has reported; `None` before its first message.
    pub(super) fn status(&self) -> Option<Progress> {
        self.status.clone()
    }

    /// Waits for messages, and reads them. Also sends the bytes for which the socket had no room before. Dropping the
    /// future loses no message.
    pub(super) async fn exchange(&mut self) {
        let Some(stream) = &self.stream else { return pending().await };
        let has_message = async {
            if let Some(at) = self.read_at {
                sleep_until(at).await;
            }
            stream.readable().await
        };
        let has_room = async { if self.unsent.is_empty() { pending().await } else { stream.writable().await } };
        let ready = tokio::select! {
            ready = has_message => ready.map(|()| true),
            ready = has_room => ready.map(|()| false),
        };
        match ready {
            Ok(true) => {
                self.read_at = Some(Instant::now() + READ_PAUSE);
                self.take_piece();
            }
            Ok(false) => self.send(),
            Err(error) => self.close(&error.to_string()),
        }
    }

    /// Asks the script to leave, once. No later notice replaces this one.
    pub(super) fn ask_to_leave(&mut self) {
        if self.status.is_some() && !self.has_asked {
            self.notify(LEAVE.to_vec());
            self.has_asked = true;
        }
    }

    /// Passes a notice to the script, as soon as it reads. A script without the helper never reads.
    pub(super) fn notify(&mut self, line: Vec<u8>) {
        if !self.has_asked {
            self.notice = Some(line);
            self.send();
        }
    }

    /// Sends the rest of the previous line, and then the newest notice, as far as the socket has room.
    fn send(&mut self) {
        if self.unsent.is_empty() && self.status.is_some() {
            self.unsent = self.notice.take().unwrap_or_default();
        }
        let Some(stream) = self.stream.as_ref().filter(|_| !self.unsent.is_empty()) else { return };
        match stream.try_write(&self.unsent) {
            Ok(sent) => {
                self.unsent.drain(..sent);
                self.send();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The script has closed its end.
            Err(_) => self.unsent.clear(),
        }
    }

    /// Reads the messages that have arrived, and closes the socket. Call this when every process of the run is dead.
    pub(super) fn finish(&mut self) {
        (0..LAST_READS).for_each(|_| self.take_piece());
        self.stream = None;
    }

    fn take_piece(&mut self) {
        let Some(stream) = &self.stream else { return };
        let mut piece = [0; PIECE_BYTES];
        match stream.try_read(&mut piece) {
            Ok(0) => self.stream = None,
            Ok(n) => {
                self.received.extend_from_slice(&piece[..n]);
                self.take_lines();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.close(&error.to_string()),
        }
    }

    fn take_lines(&mut self) {
        while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.received.drain(..=end).collect();
            if line.len() > LINE_BYTES {
                return self.close("a line is too long");
            }
            match serde_json::from_slice(&line) {
                Ok(message) => self.take(&message),
                Err(error) => return self.close(&format!("a line is not a JSON object: {error}")),
            }
        }
        if self.received.len() >= LINE_BYTES {
            self.close("a line is too long");
        }
    }

    fn take(&mut self, message: &Map<String, Value>) {
        if message.contains_key("hello") {
            self.status.get_or_insert_default();
            self.send();
        }
        let (Some(known), Some(report)) = (&mut self.status, message.get("progress")) else { return };
        let reason = match Progress::deserialize(report) {
            Ok(report) if report.step >= known.step => {
                *known = report;
                return;
            }
            Ok(report) => {
                let step = report.step.map_or_else(|| "no step".to_owned(), |step| format!("step {step}"));
                format!("{step} after step {}", known.step.unwrap_or_default())
            }
            Err(error) => error.to_string(),
        };
        if !mem::replace(&mut self.has_ignored, true) {
            warn!(reason, "ignored a report of the helper; further ignored reports are not logged");
        }
    }

    /// Closes the socket. The run continues.
    fn close(&mut self, reason: &str) {
        warn!(reason, "closed the socket to the helper of the run");
        self.stream = None;
        self.received = Vec::new();
    }
}
