//! Copies the run's output to the agent's stdout and stderr, for `kubectl logs`. A reader that stops reading does not
//! delay exec.py or the agent. The reader loses the bytes that the logs cannot keep. A note shows how many.

use std::io;
use std::sync::Arc;

use protocol::agent::RunStatus;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tracing::warn;

use crate::follow::{LogReader, ReaderPiece, Until};
use crate::log::{AgentOutput, Stream};

/// Copies both streams until the agent ends and the logs have no more bytes.
pub async fn mirror(output: Arc<AgentOutput>, status: watch::Receiver<RunStatus>) {
    let follower = |stream| LogReader::open(Arc::clone(&output), status.clone(), stream, 0, Until::AgentEnds);
    let to_stdout = async { copy(follower(Stream::Stdout).await?, tokio::io::stdout()).await };
    let to_stderr = async { copy(follower(Stream::Stderr).await?, tokio::io::stderr()).await };
    for result in <[io::Result<()>; 2]>::from(tokio::join!(to_stdout, to_stderr)) {
        if let Err(error) = result {
            warn!(%error, "cannot copy the output to the agent's stdout or stderr");
        }
    }
}

async fn copy(mut follower: LogReader, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    loop {
        match follower.next().await? {
            ReaderPiece::Bytes(bytes, _) => to.write_all(&bytes).await?,
            ReaderPiece::Dropped(bytes) => {
                let note = format!("\n[muster: {bytes} bytes of output were dropped here]\n");
                to.write_all(note.as_bytes()).await?;
            }
            ReaderPiece::End | ReaderPiece::RunEnded(_) => return Ok(()),
        }
        // Without a flush, the bytes may stay in the writer's buffer until the next line.
        to.flush().await?;
    }
}
