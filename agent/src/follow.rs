//! Reads a log while runs may still write to it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::agent::{RunState, RunStatus};
use protocol::ids::Generation;
use tokio::sync::watch;

use crate::log::{AgentOutput, LogPart, Stream};

/// Maximum bytes of one piece.
const PIECE_BYTES: usize = 64 * 1024;

/// Where a reader stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// At this offset, which the log has already reached.
    Offset(u64),
    /// At the end of the run's output.
    RunExited,
    /// At the end of the agent's life.
    AgentEnds,
}

/// A reader of one log.
#[derive(Debug)]
pub struct LogReader {
    output: Arc<AgentOutput>,
    stream: Stream,
    offset: u64,
    until: Until,
    end: watch::Receiver<u64>,
    status: watch::Receiver<RunStatus>,
}

/// A piece for a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum ReaderPiece {
    /// The next bytes, and how long ago they were printed.
    Bytes(Bytes, Duration),
    /// This many bytes are missing: they were dropped before they were read, or were never stored. The next piece
    /// begins after the missing bytes.
    Dropped(u64),
    /// No more pieces follow.
    End,
    /// No more pieces follow, because this run has ended. All of its output was read.
    RunEnded(Option<Generation>),
}

impl LogReader {
    /// Creates a reader that begins at the first kept byte from `offset` on. If no such byte is kept, the reader begins
    /// at the log's end.
    ///
    /// # Errors
    /// The agent ends.
    pub async fn open(
        output: Arc<AgentOutput>,
        status: watch::Receiver<RunStatus>,
        stream: Stream,
        offset: u64,
        until: Until,
    ) -> io::Result<Self> {
        let end = output.log(stream).subscribe();
        let offset = output.on_disk(move |output| output.log(stream).next_kept(offset)).await?;
        Ok(Self { output, stream, offset, until, end, status })
    }

    /// The offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Waits for the next piece.
    pub async fn next(&mut self) -> io::Result<ReaderPiece> {
        loop {
            // Look for the end before reading. If the run has exited by then, its last output is in the log, and the
            // read below cannot miss it.
            let end = self.end();
            if let Some(piece) = self.read().await?.or(end) {
                return Ok(piece);
            }
            tokio::select! {
                // The log outlives its readers, so this cannot fail.
                _ = self.end.changed() => {}
                // An error means that the agent ends.
                _ = self.status.changed() => {}
            }
        }
    }

    /// The last piece, if the log already contains everything that the reader wants.
    fn end(&mut self) -> Option<ReaderPiece> {
        let agent_ends = self.status.has_changed().is_err();
        let (state, generation) = {
            let status = self.status.borrow_and_update();
            (status.state, status.generation)
        };
        self.end.mark_unchanged();
        match self.until {
            Until::RunExited if state == RunState::Exited => Some(ReaderPiece::RunEnded(generation)),
            Until::RunExited | Until::AgentEnds => agent_ends.then_some(ReaderPiece::End),
            Until::Offset(_) => Some(ReaderPiece::End),
        }
    }

    /// Reads the next piece that the log has now, if there is one. Dropping the future loses no bytes.
    async fn read(&mut self) -> io::Result<Option<ReaderPiece>> {
        let (stream, from) = (self.stream, self.offset);
        if self.output.log(stream).end() <= from {
            return Ok(None);
        }
        let wanted = match self.until {
            Until::Offset(end) => (end.saturating_sub(self.offset)).min(PIECE_BYTES as u64) as usize,
            Until::RunExited | Until::AgentEnds => PIECE_BYTES,
        };
        let read = move |output: &AgentOutput| {
            let mut buffer = vec![0; wanted];
            output.log(stream).read(from, &mut buffer).map(|part| (part, buffer))
        };
        let (LogPart { first, length, age }, mut buffer) = self.output.on_disk(read).await??;
        let dropped = first.saturating_sub(self.offset);
        if dropped > 0 {
            self.offset = first;
            return Ok(Some(ReaderPiece::Dropped(dropped)));
        }
        if length == 0 {
            return Ok(None);
        }
        buffer.truncate(length);
        self.offset = first + length as u64;
        Ok(Some(ReaderPiece::Bytes(buffer.into(), age)))
    }
}
