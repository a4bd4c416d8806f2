//! Copies exec.py's pipes to the logs, in bounded memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::log::{Output, Stream};

/// Maximum bytes of an unfinished line that the pump holds back.
const LINE_BYTES: usize = 64 * 1024;

/// How long the pump holds back an unfinished line, so that lines of stdout and stderr do not mix. Prompts and progress
/// bars may stay unfinished for longer, and must be shown too.
const LINE_WAIT: Duration = Duration::from_millis(200);

/// Reads both pipes until no process has them open for writing.
pub async fn pump(stdout: pipe::Receiver, stderr: pipe::Receiver, output: Arc<Output>) {
    let of_stdout = pump_stream(stdout, Stream::Stdout, &output);
    let of_stderr = pump_stream(stderr, Stream::Stderr, &output);
    for result in <[io::Result<()>; 2]>::from(tokio::join!(of_stdout, of_stderr)) {
        if let Err(error) = result {
            warn!(%error, "cannot read the output to its end");
        }
    }
}

async fn pump_stream(mut pipe: pipe::Receiver, stream: Stream, output: &Output) -> io::Result<()> {
    let mut buffer = vec![0; LINE_BYTES];
    // buffer[..held] is the beginning of a line. At the deadline, the pump appends it to the log.
    let (mut held, mut deadline) = (0, Instant::now());
    loop {
        // Check the deadline before every read: `timeout_at` prefers available bytes to a deadline that has passed.
        if held > 0 && deadline <= Instant::now() {
            output.append(stream, &buffer[..held]);
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
            output.append(stream, &buffer[..ready]);
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
