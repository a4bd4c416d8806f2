//! Copies the pipes of a run's processes to the logs, in bounded memory. While the disk stalls, the pipes fill, and the
//! processes wait.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::log::{AgentOutput, LabelledLog, Stream};
use crate::process::child::Pipes;

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

/// Maximum number of newest bytes of stderr that the pump keeps in memory for each of several processes.
const TAIL_BYTES: usize = 32 * 1024;

/// The output of one main process.
#[derive(Debug)]
pub struct ProcessOutput {
    /// Its pipes.
    pub pipes: Pipes,
    /// Stands before each of its lines in the logs. `None` if the run has only one process.
    pub label: Option<String>,
}

impl ProcessOutput {
    /// The output of the only process of a run.
    pub fn of_one(pipes: Pipes) -> Self {
        Self { pipes, label: None }
    }
}

/// Bytes of one stream of one process, in the order of their arrival.
struct PumpedPiece {
    process: usize,
    stream: Stream,
    bytes: Box<[u8]>,
}

/// Reads all pipes until no process has them open for writing, or until the sender of `stop` is dropped. Then still
/// reads what the pipes contain. Returns when everything that was read is in the logs. If the processes have labels,
/// also returns the end of each process's stderr, without labels.
pub async fn pump(outputs: Vec<ProcessOutput>, output: &Arc<AgentOutput>, stop: watch::Receiver<()>) -> Vec<Vec<u8>> {
    let (pieces, queue) = mpsc::channel(PIECES_MAX);
    let mut readers = JoinSet::new();
    let mut labels = Vec::new();
    for (process, ProcessOutput { pipes: Pipes { stdout, stderr }, label }) in outputs.into_iter().enumerate() {
        labels.extend(label);
        for (pipe, stream) in [(stdout, Stream::Stdout), (stderr, Stream::Stderr)] {
            readers.spawn(pump_one(pipe, (process, stream), pieces.clone(), stop.clone()));
        }
    }
    drop(pieces);
    write(queue, output, &labels).await
}

async fn pump_one(
    pipe: pipe::Receiver,
    (process, stream): (usize, Stream),
    pieces: mpsc::Sender<PumpedPiece>,
    stop: watch::Receiver<()>,
) {
    if let Err(error) = pump_stream(pipe, &PieceSender { process, stream, pieces }, stop).await {
        warn!(%error, process, ?stream, "cannot read the output to its end");
    }
}

/// Sends the pieces of one stream.
struct PieceSender {
    process: usize,
    stream: Stream,
    pieces: mpsc::Sender<PumpedPiece>,
}

impl PieceSender {
    async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let piece = PumpedPiece { process: self.process, stream: self.stream, bytes: bytes.into() };
        self.pieces.send(piece).await.map_err(io::Error::other)
    }
}

/// Appends the pieces to the logs, one after another, until the pump drops the senders. See [`pump`] for the labels.
async fn write(mut pieces: mpsc::Receiver<PumpedPiece>, output: &Arc<AgentOutput>, labels: &[String]) -> Vec<Vec<u8>> {
    let mut tails = vec![Vec::new(); labels.len()];
    let (mut both, mut stdout, mut stderr) = (LabelledLog::default(), LabelledLog::default(), LabelledLog::default());
    while let Some(PumpedPiece { process, stream, bytes }) = pieces.recv().await {
        let written = match labels.get(process) {
            None => output.on_disk(move |output| output.append(stream, &bytes)).await,
            Some(label) => {
                if stream == Stream::Stderr {
                    keep_tail(&mut tails[process], &bytes);
                }
                let own = if stream == Stream::Stderr { &mut stderr } else { &mut stdout };
                let own = own.labelled((process, stream), label, &bytes);
                let both = both.labelled((process, stream), label, &bytes);
                output.on_disk(move |output| output.append_each(stream, &own, &both)).await
            }
        };
        if let Err(error) = written {
            warn!(%error, "cannot keep output");
        }
    }
    tails
}

/// Appends bytes to a tail, and keeps at least the newest [`TAIL_BYTES`].
fn keep_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    tail.extend_from_slice(bytes);
    if tail.len() > 2 * TAIL_BYTES {
        tail.drain(..tail.len() - TAIL_BYTES);
    }
}

async fn pump_stream(mut pipe: pipe::Receiver, pieces: &PieceSender, mut stop: watch::Receiver<()>) -> io::Result<()> {
    let mut buffer = vec![0; LINE_BYTES];
    // buffer[..held] is the beginning of a line. At the deadline, the pump appends it to the log.
    let (mut held, mut deadline) = (0, Instant::now());
    loop {
        let read = tokio::select! {
            // Check the deadline before every read: a program that prints all the time must not prevent this check.
            biased;
            _ = stop.changed() => break,
            () = sleep_until(deadline), if held > 0 => {
                pieces.send(&buffer[..held]).await?;
                held = 0;
                continue;
            }
            read = pipe.read(&mut buffer[held..]) => read?,
        };
        let filled = held + read;
        let ready = ready_length(&buffer[..filled], held, read);
        if ready > 0 {
            pieces.send(&buffer[..ready]).await?;
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
    pieces.send(&buffer).await?;
    if !rest? {
        warn!("a process outside the run keeps the run's output open; its later output is not kept");
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
