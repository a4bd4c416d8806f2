//! Copies exec.py's pipes to the logs, in bounded memory. While the disk stalls, the pipes fill, and exec.py waits.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::log::{AgentOutput, Stream};

/// Maximum bytes of an unfinished line that the pump holds back.
const LINE_BYTES: usize = 64 * 1024;

/// How long the pump holds back an unfinished line, so that lines of stdout and stderr do not mix. Prompts and progress
/// bars may stay unfinished for longer, and must be shown too.
const LINE_WAIT: Duration = Duration::from_millis(200);

/// Maximum bytes that the pump reads from a pipe after it was asked to stop. A pipe of an unprivileged process contains
/// at most these bytes (`/proc/sys/fs/pipe-max-size`).
const REST_BYTES: u64 = 1024 * 1024;

/// Maximum number of pieces that wait for the disk.
const PIECES_MAX: usize = 2;

/// Bytes of one stream, in the order of their arrival.
type PumpedPiece = (Stream, Box<[u8]>);

/// Reads both pipes until no process has them open for writing, or until the sender of `stop` is dropped. Then still
/// reads what the pipes contain. Returns when everything that was read is in the logs.
pub async fn pump(
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    output: &Arc<AgentOutput>,
    stop: watch::Receiver<()>,
) {
    let (pieces, queue) = mpsc::channel(PIECES_MAX);
    let pump_one = async |pipe: pipe::Receiver, stream: Stream, pieces: mpsc::Sender<PumpedPiece>| {
        if let Err(error) = pump_stream(pipe, stream, pieces, stop.clone()).await {
            warn!(%error, ?stream, "cannot read the output to its end");
        }
    };
    let of_stdout = pump_one(stdout, Stream::Stdout, pieces.clone());
    tokio::join!(of_stdout, pump_one(stderr, Stream::Stderr, pieces), write(queue, output));
}

/// Appends the pieces to the logs, one after another, until the pump drops the senders.
async fn write(mut pieces: mpsc::Receiver<PumpedPiece>, output: &Arc<AgentOutput>) {
    while let Some((stream, bytes)) = pieces.recv().await {
        if let Err(error) = output.on_disk(move |output| output.append(stream, &bytes)).await {
            warn!(%error, "cannot keep output");
        }
    }
}

async fn pump_stream(
    mut pipe: pipe::Receiver,
    stream: Stream,
    pieces: mpsc::Sender<PumpedPiece>,
    mut stop: watch::Receiver<()>,
) -> io::Result<()> {
    let append = async |bytes: &[u8]| pieces.send((stream, bytes.into())).await.map_err(io::Error::other);
    let mut buffer = vec![0; LINE_BYTES];
    // buffer[..held] is the beginning of a line. At the deadline, the pump appends it to the log.
    let (mut held, mut deadline) = (0, Instant::now());
    loop {
        let read = tokio::select! {
            // Check the deadline before every read: a program that prints all the time must not prevent this check.
            biased;
            _ = stop.changed() => break,
            () = sleep_until(deadline), if held > 0 => {
                append(&buffer[..held]).await?;
                held = 0;
                continue;
            }
            read = pipe.read(&mut buffer[held..]) => read?,
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
    buffer.truncate(held);
    let rest = read_rest(pipe, &mut buffer);
    append(&buffer).await?;
    if !rest? {
        warn!(?stream, "a process outside the run keeps the run's output open; its later output is not kept");
    }
    Ok(())
}

/// Reads what the pipe contains now. Returns whether the pipe has ended.
fn read_rest(pipe: pipe::Receiver, buffer: &mut Vec<u8>) -> io::Result<bool> {
    // tokio's `try_read` may miss bytes that arrived a moment ago.
    match File::from(pipe.into_nonblocking_fd()?).take(REST_BYTES).read_to_end(buffer) {
        Ok(read) => Ok((read as u64) < REST_BYTES),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// The number of bytes to append to the log: whole lines, or all bytes if the buffer is full or the pipe has ended. The
/// first `held` bytes contain no newline.
fn ready_length(filled: &[u8], held: usize, read: usize) -> usize {
    match filled[held..].iter().rposition(|byte| *byte == b'\n') {
        Some(newline) => held + newline + 1,
        None if read == 0 || filled.len() == LINE_BYTES => filled.len(),
        None => 0,
    }
}
