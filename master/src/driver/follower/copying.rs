//! Copies the output of a pod's runs from the pod's agent to a file of the master.

use std::io;
use std::time::Duration;

use backon::Retryable;
use bytes::Bytes;
use futures_util::StreamExt;
use protocol::ids::{Generation, UnixMillis};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Copied, Followed, Pod, persistent};
use crate::agents::client::{AgentAnswer, AgentError, LogPiece};
use crate::driver::context::Common;
use crate::error_chain::error_chain;
use crate::host::clock::wall_clock;

/// The time at which bytes with this age were printed.
fn printed_at(now: UnixMillis, age: Duration) -> UnixMillis {
    UnixMillis(now.0.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
}

/// Pause after the file has refused output, although it has kept some bytes before.
const PAUSE_OF_FILE: Duration = Duration::from_secs(1);

/// How a stream of output ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// This run has ended, and the stream brought the rest of its output.
    RunEnded(Option<Generation>),
    /// The stream brought some bytes, but not the end of a run.
    Progressed,
    /// The stream brought neither bytes nor the end of a run.
    Empty,
}

/// Why a copy stopped.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("could not write the output to disk")]
    File(#[source] io::Error),
    #[error("the agent ended the stream of output before the end of its run")]
    NoStream,
}

impl Pod {
    /// Copies the output of each run while the run writes it.
    pub(super) async fn copy_output(&self) {
        let mut news = self.news.subscribe();
        let is_due = |copied: &Copied| copied.started > copied.complete;
        let mut base = None;
        while news.wait_for(|copied| is_due(copied) || copied.is_last).await.is_ok_and(|copied| is_due(&copied)) {
            let started = news.borrow().started;
            let run;
            (run, base) = self.copy_run(base).await;
            // If the agent has no run or is dead, nothing more can be copied, so the started run counts as complete.
            let complete = run.max(started);
            self.news.send_modify(|copied| copied.complete = complete);
        }
    }

    /// Copies until a run has ended and its output is complete. Returns that run; `None` if the agent has no run, or if
    /// the rest of the output is lost. Also returns where the agent's output begins in the file, if that is known.
    async fn copy_run(&self, base: Option<u64>) -> (Option<Generation>, Option<u64>) {
        let Followed { address, log, .. } = &self.followed;
        // After an earlier copy from this agent, no status is needed to find the place in the file.
        if let Some(base) = base
            && let Ok(StreamEnd::RunEnded(run)) = self.copy_stream(base).await
        {
            return (run, Some(base));
        }
        let mut has_told = false;
        loop {
            let before = log.progress().end;
            let attempt = async || self.copy_rest().await;
            // The pauses grow while no byte arrives. After some bytes, they are short again.
            let is_worth_it = |_: &CopyError| !self.ended.is_cancelled() && log.progress().end == before;
            let tell = |error: &CopyError, _| {
                if !std::mem::replace(&mut has_told, true) {
                    info!(agent = %address, error = error_chain(error), "copying output was interrupted; retrying");
                }
            };
            match attempt.retry(persistent()).when(is_worth_it).notify(tell).await {
                Ok((run, base)) => return (run, base),
                // Perhaps the disk is nearly full, and has room for a few bytes each time.
                Err(CopyError::File(_)) if log.progress().end > before => sleep(PAUSE_OF_FILE).await,
                Err(_) if log.progress().end > before => {}
                Err(error) => {
                    warn!(agent = %address, error = error_chain(&error), "the rest of a run's output is lost");
                    return (None, None);
                }
            }
        }
    }

    /// Copies the missing output. Returns the same values as [`Self::copy_run`]. The end of a stream is not always the
    /// end of the output, because an agent also ends the stream of a slow reader. When an agent has sent all output of
    /// a run, it names the run.
    async fn copy_rest(&self) -> Result<(Option<Generation>, Option<u64>), CopyError> {
        let Followed { common: Common { agents, .. }, address, log, .. } = &self.followed;
        loop {
            let AgentAnswer::Status(status) = agents.status(*address, None).await? else { return Ok((None, None)) };
            let base = self.kept(log.base_of(&status).await)?;
            match self.copy_stream(base).await? {
                StreamEnd::RunEnded(run) => return Ok((run, Some(base))),
                StreamEnd::Progressed => {}
                StreamEnd::Empty => return Err(CopyError::NoStream),
            }
        }
    }

    /// Copies the output that the file does not contain yet, until the agent ends the stream. Byte 0 of the agent's
    /// output is byte `base` of the file.
    async fn copy_stream(&self, base: u64) -> Result<StreamEnd, CopyError> {
        let Followed { common: Common { agents, .. }, address, log, .. } = &self.followed;
        let before = log.progress().end;
        let mut stream = agents.logs(*address, before.saturating_sub(base), base).await?;
        let mut offset = stream.offset + base;
        if offset > before {
            // The agent no longer has the bytes in between. Record the gap now, because perhaps no bytes follow.
            self.kept(log.append(offset, Bytes::new(), wall_clock()).await)?;
        }
        while let Some(piece) = stream.pieces.next().await {
            match piece? {
                LogPiece::Bytes(bytes, age) => {
                    let length = bytes.len() as u64;
                    self.kept(log.append(offset, bytes, printed_at(wall_clock(), age)).await)?;
                    offset += length;
                }
                LogPiece::RunEnded(run) => return Ok(StreamEnd::RunEnded(run)),
            }
        }
        Ok(if log.progress().end > before { StreamEnd::Progressed } else { StreamEnd::Empty })
    }

    /// Notes whether the file accepts output, for the readers of the file and for tasks that wait for the copy.
    fn kept<T>(&self, done: io::Result<T>) -> Result<T, CopyError> {
        let log = &self.followed.log;
        let is_stuck = done.is_err();
        match &done {
            Ok(_) => log.note_kept(),
            Err(error) => log.note_missing(error),
        }
        self.news.send_if_modified(|copied| std::mem::replace(&mut copied.is_stuck, is_stuck) != is_stuck);
        done.map_err(CopyError::File)
    }
}
