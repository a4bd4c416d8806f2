//! Copies exec.py's pipes to the logs, in bounded memory. While the disk stalls, the pipes fill, and exec.py waits.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::log::{Output, Stream};

/// Maximum bytes of an unfinished line that the pump holds back.
const LINE_BYTES: usize = 64 * 1024;

/// How long the pump holds back an unfinished line, so that lines of stdout and stderr do not mix. Prompts and progress
/// bars may stay unfinished for longer, and must be shown too.
const LINE_WAIT: Duration = Duration::from_millis(200);

/// Maximum number of pieces that wait for the disk.
const PIECES_MAX: usize = 2;

/// Bytes of one stream, in the order of their arrival.
type Piece = (Stream, Box<[u8]>);

/// Reads both pipes until no process has them open for writing, or until the sender of `stop` is dropped. Returns when
/// everything that was read is in the logs.
pub async fn pump(
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    output: &Arc<Output>,
    stop: oneshot::Receiver<Infallible>,
) {
    let (pieces, queue) = mpsc::channel(PIECES_MAX);
    let of_stderr = pieces.clone();
    let reading = async {
        tokio::join!(pump_stream(stdout, Stream::Stdout, pieces), pump_stream(stderr, Stream::Stderr, of_stderr))
    };
    let until_stopped = async {
        tokio::select! {
            results = reading => for error in <[io::Result<()>; 2]>::from(results).into_iter().filter_map(Result::err) {
                warn!(%error, "cannot read the output to its end");
            },
            _ = stop => {}
        }
    };
    tokio::join!(until_stopped, write(queue, output));
}

/// Appends the pieces to the logs, one after another, until the pump drops the senders.
async fn write(mut pieces: mpsc::Receiver<Piece>, output: &Arc<Output>) {
    while let Some((stream, bytes)) = pieces.recv().await {
        if let Err(error) = output.on_disk(move |output| output.append(stream, &bytes)).await {
            warn!(%error, "cannot keep output");
        }
    }
}

async fn pump_stream(mut pipe: pipe::Receiver, stream: Stream, pieces: mpsc::Sender<Piece>) -> io::Result<()> {
    let append = async |bytes: &[u8]| pieces.send((stream, bytes.into())).await.map_err(io::Error::other);
    let mut buffer = vec![0; LINE_BYTES];
    // buffer[..held] is the beginning of a line. At the deadline, the pump appends it to the log.
    let (mut held, mut deadline) = (0, Instant::now());
    loop {
        // Check the deadline before every read: `timeout_at` prefers available bytes to a deadline that has passed.
        if held > 0 && deadline <= Instant::now() {
            append(&buffer[..held]).await?;
            held = 0;
        }
        let reading = pipe.read(&mut buffer[held..]);
        let read = if held == 0 {
            reading.await?
        } else if let Ok(read) = timeout_at(deadline, reading).await {
            read?
        } else {
            continue;
        };
        let filled = held + read;
        let ready = ready_length(&buffer[..filled], held, read);
        if ready > 0 {
            append(&buffer[..ready]).await?;
            buffer.copy_within(ready..filled, 0);
        }
        if held == 0 || ready > 0 {
            deadline = Instant::now() + LINE_WAIT;
        }
        held = filled - ready;
        if read == 0 {
            return Ok(());
        }
    }
}

/// The number of bytes to append to the log: whole lines, or all bytes if the buffer is full or the pipe has ended. The
/// first `held` bytes contain no newline.
fn ready_length(filled: &[u8], held: usize, read: usize) -> usize {
    match last_newline(&filled[held..]) {
        Some(newline) => held + newline + 1,
        None if read == 0 || filled.len() == LINE_BYTES => filled.len(),
        None => 0,
    }
}

fn last_newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().rposition(|byte| *byte == b'\n')
}
