//! The agent's own log lines, on stderr. A separate thread writes them, because writes block if nobody reads the pipe.
//! HTTP and the run must not wait for a blocked write.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of waiting lines. Further lines are lost.
const LINES_MAX: usize = 256;

/// How long writing the last lines may take when the agent ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The destination of log lines.
#[derive(Debug, Clone)]
pub struct Diagnostics {
    lines: SyncSender<DiagnosticLine>,
}

#[derive(Debug)]
enum DiagnosticLine {
    Line(Vec<u8>),
    /// Answered when all earlier lines are written.
    Flush(SyncSender<()>),
}

/// Starts the writing thread, and makes it the destination of all log lines of this process.
pub fn start() -> io::Result<Diagnostics> {
    let (lines, messages) = sync_channel(LINES_MAX);
    thread::Builder::new().name("diagnostics".to_owned()).spawn(move || write_all(&messages))?;
    let diagnostics = Diagnostics { lines };
    tracing_subscriber::fmt()
        .with_max_level(Level::INFO)
        .with_ansi(false)
        .with_target(false)
        .with_writer(diagnostics.clone())
        .init();
    Ok(diagnostics)
}

fn write_all(messages: &Receiver<DiagnosticLine>) {
    for message in messages {
        match message {
            // If stderr is closed, the error cannot be reported.
            DiagnosticLine::Line(line) => drop(io::stderr().write_all(&line)),
            DiagnosticLine::Flush(done) => drop(done.send(())),
        }
    }
}

impl Diagnostics {
    /// Waits until all lines so far are written, for a second at most. Does not wait if the queue is full.
    pub fn flush(&self) {
        let (done, flushed) = sync_channel(1);
        if self.lines.try_send(DiagnosticLine::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(FLUSH_LIMIT);
        }
    }
}

/// Writes one log line. The subscriber passes each line in one call.
#[derive(Debug)]
pub struct LineWriter<'a>(&'a SyncSender<DiagnosticLine>);

impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.0.try_send(DiagnosticLine::Line(line.to_owned()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Diagnostics {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LineWriter(&self.lines)
    }
}
