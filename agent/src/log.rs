//! The output of the runs: three bounded logs with one writer and any number of readers. Only blocking threads read and
//! write the logs ([`AgentOutput::on_disk`]). A disk may stall, but the agent's main thread must still kill the run when the
//! lease has ended.
//!
//! Each stream has its own offsets, which continue from run to run. The files have no names, so they vanish when the
//! agent ends.

mod labels;
mod marks;

use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bounded_log::BoundedLog;
use protocol::agent::STDERR_TAIL_BYTES;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing::warn;

pub(crate) use self::labels::LabelledLog;
use self::marks::Marks;
use crate::process::clock::clock;

/// How far back stderr is searched for the exception that ended a run.
const LOOK_BACK_BYTES: u64 = 1024 * 1024;

/// Maximum bytes that one read of stderr returns.
const PIECE_BYTES: usize = 64 * 1024;

/// One of exec.py's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Both outputs, line by line in order of arrival.
    Both,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The size of each of the three logs, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct LogSize {
    /// Number of newest bytes to keep.
    pub capacity: NonZeroU64,
    /// Disk space to reserve when the log is created, at most the capacity. The reserve keeps room for the traceback of
    /// a script that fails because the disk is full.
    pub reserved: u64,
}

/// The output of all runs of this agent.
#[derive(Debug)]
pub struct AgentOutput {
    both: StreamLog,
    stdout: StreamLog,
    stderr: StreamLog,
}

impl AgentOutput {
    /// Creates empty logs of `size` in the first writable folder of `folders`. A container's root may be read-only.
    ///
    /// # Errors
    /// The error of the last folder.
    pub fn create(folders: &[PathBuf], size: LogSize) -> io::Result<Self> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for folder in folders {
            let create = || BoundedLog::create_anonymous(folder, size.capacity);
            match (create(), create(), create()) {
                (Ok(both), Ok(stdout), Ok(stderr)) => {
                    reserve([&both, &stdout, &stderr], size.reserved);
                    let [both, stdout, stderr] = [both, stdout, stderr].map(StreamLog::new);
                    return Ok(Self { both, stdout, stderr });
                }
                (Err(error), _, _) | (_, Err(error), _) | (_, _, Err(error)) => failure = error,
            }
        }
        Err(failure)
    }

    /// One stream's log.
    pub fn log(&self, stream: Stream) -> &StreamLog {
        match stream {
            Stream::Both => &self.both,
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    /// Does `work` on a blocking thread.
    ///
    /// # Errors
    /// `work` has panicked, or the agent ends.
    pub async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> io::Result<T> {
        let output = Arc::clone(self);
        Ok(spawn_blocking(move || work(&output)).await?)
    }

    /// Appends the bytes of one stream to its log and to the log of both streams.
    pub fn append(&self, stream: Stream, bytes: &[u8]) {
        self.append_each(stream, bytes, bytes);
    }

    /// Appends `own` to the log of one stream, and `both` to the log of both streams.
    pub(crate) fn append_each(&self, stream: Stream, own: &[u8], both: &[u8]) {
        self.log(stream).append(own);
        self.both.append(both);
    }

    /// The kept bytes of stderr from the offset `from` on, but at most the newest MiB.
    pub fn stderr_from(&self, from: u64) -> Vec<u8> {
        let log = &self.stderr;
        let mut offset = from.max(log.end().saturating_sub(LOOK_BACK_BYTES));
        let mut stderr = vec![];
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            match log.read(offset, &mut buffer) {
                Ok(LogPart { length: 0, .. }) => return stderr,
                Ok(LogPart { first, length, .. }) => {
                    stderr.extend_from_slice(&buffer[..length]);
                    offset = first + length as u64;
                }
                Err(error) => {
                    warn!(%error, "cannot read the kept stderr");
                    return stderr;
                }
            }
        }
    }
}

/// Reserves the disk space of the logs. If this fails, the logs work until the disk is full.
fn reserve(logs: [&BoundedLog; 3], bytes: u64) {
    if let Err(error) = logs.into_iter().try_for_each(|log| log.reserve(bytes)) {
        warn!(%error, bytes, "cannot reserve disk space for the output; if the disk is full, output may be lost");
    }
}

/// The last bytes of stderr as text of at most [`STDERR_TAIL_BYTES`].
pub fn stderr_tail(stderr: &[u8]) -> String {
    let bytes = &stderr[stderr.len().saturating_sub(STDERR_TAIL_BYTES)..];
    // The cut may be inside a character. Leave out the rest of that character.
    let cut = bytes.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
    let text = String::from_utf8_lossy(&bytes[cut..]);
    // The replacement for an invalid byte takes three bytes, so the text may be too long.
    let surplus = text.len().saturating_sub(STDERR_TAIL_BYTES);
    let begin = (surplus..).find(|index| text.is_char_boundary(*index)).expect("the end is a boundary");
    text[begin..].to_owned()
}

/// One log, and a watch channel that contains the log's end offset. The mutex is locked during one read or write, and
/// never across an await.
#[derive(Debug)]
pub struct StreamLog {
    timed: Mutex<TimedLog>,
    end: watch::Sender<u64>,
}

/// A log, and when its bytes were printed.
#[derive(Debug)]
struct TimedLog {
    log: BoundedLog,
    marks: Marks,
}

/// Consecutive bytes of a log that were printed at about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPart {
    /// The offset of the first byte.
    pub first: u64,
    /// Number of bytes.
    pub length: usize,
    /// How long ago the bytes were printed.
    pub age: Duration,
}

impl StreamLog {
    fn new(log: BoundedLog) -> Self {
        let end = watch::Sender::new(log.end());
        Self { timed: Mutex::new(TimedLog { log, marks: Marks::default() }), end }
    }

    /// Appends bytes. If the disk refuses the bytes, the log gets a gap: exec.py must not wait for its output, and
    /// later offsets must stay correct.
    fn append(&self, bytes: &[u8]) {
        let mut timed = self.lock();
        let TimedLog { log, marks } = &mut *timed;
        marks.note(log.end(), clock(), log.start());
        let end = log.end() + bytes.len() as u64;
        if let Err(error) = log.append(bytes) {
            warn!(%error, bytes = bytes.len(), "cannot keep output");
            log.skip_to(end).unwrap_or_else(|error| warn!(%error, "offsets of the output are wrong from here on"));
        }
        let end = log.end();
        drop(timed);
        self.end.send_replace(end);
    }

    /// The offset of the first kept byte from `offset` on, or the log's end if no such byte is kept.
    pub fn next_kept(&self, offset: u64) -> u64 {
        self.lock().log.next_kept(offset)
    }

    /// The offset after the newest byte. Does not wait for the disk.
    pub fn end(&self) -> u64 {
        *self.end.borrow()
    }

    /// A receiver of the log's end.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// Reads the first kept bytes at or after `offset`, like [`BoundedLog::read`], but only those that were printed at
    /// about the same time. More bytes may follow even if the buffer is not full.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<LogPart> {
        let timed = self.lock();
        let first = timed.log.next_kept(offset);
        let printed = timed.marks.of(first, clock());
        let wanted = (printed.until - first).min(buffer.len() as u64) as usize;
        let (first, length) = timed.log.read(first, &mut buffer[..wanted])?;
        Ok(LogPart { first, length, age: printed.age })
    }

    fn lock(&self) -> MutexGuard<'_, TimedLog> {
        // After a panic in another thread, the log is valid up to its last append.
        self.timed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Write, pipe};
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};

    use tokio::io::AsyncWriteExt;
    use tokio::net::unix::pipe::{Receiver, Sender};
    use tokio::runtime;
    use tokio::task::{self, yield_now};

    use super::*;
    use crate::process::child::Pipes;
    use crate::pump::{ProcessOutput, pump};

    fn output_of(capacity: u64) -> Arc<AgentOutput> {
        let size = LogSize { capacity: NonZeroU64::new(capacity).unwrap(), reserved: 0 };
        Arc::new(AgentOutput::create(&[std::env::temp_dir()], size).unwrap())
    }

    /// Stalls the disk until the returned sender sends. An append that stalls holds the lock of its log. The thread
    /// returns whether the sender has sent in time.
    fn stall(output: &Arc<AgentOutput>) -> (mpsc::Sender<()>, JoinHandle<bool>) {
        let (stalled, is_stalled) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        let output = Arc::clone(output);
        let disk = thread::spawn(move || {
            let _lock = output.both.lock();
            stalled.send(()).unwrap();
            resumed.recv_timeout(Duration::from_secs(20)).is_ok()
        });
        is_stalled.recv().unwrap();
        (resume, disk)
    }

    /// Pumps in a task until the returned sender is dropped.
    fn pump_in_task(pipes: [PipeReader; 2], output: &Arc<AgentOutput>) -> (watch::Sender<()>, task::JoinHandle<()>) {
        let [stdout, stderr] = pipes.map(|pipe| Receiver::from_owned_fd(pipe.into()).unwrap());
        let (stop, stopped) = watch::channel(());
        let output = Arc::clone(output);
        (
            stop,
            tokio::spawn(async move {
                pump(vec![ProcessOutput::of_one(Pipes { stdout, stderr })], &output, stopped).await;
            }),
        )
    }

    fn text(output: &AgentOutput, stream: Stream) -> String {
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        loop {
            match output.log(stream).read(text.len() as u64, &mut buffer).unwrap() {
                LogPart { length: 0, .. } => return text,
                LogPart { length, .. } => text += str::from_utf8(&buffer[..length]).unwrap(),
            }
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn while_the_disk_stalls_the_agents_thread_goes_on_and_no_output_is_lost() {
        let output = output_of(1024);
        let (resume, disk) = stall(&output);
        let (stdout, mut to_stdout) = pipe().unwrap();
        let (stderr, mut to_stderr) = pipe().unwrap();
        to_stdout.write_all(b"first\n").unwrap();
        block_on(async {
            let (_stop, pumping) = pump_in_task([stdout, stderr], &output);
            output.log(Stream::Stdout).subscribe().wait_for(|end| *end == 6).await.unwrap();
            // The append to the log of both streams waits for its lock now. This thread does not.
            to_stderr.write_all(b"second\n").unwrap();
            drop((to_stdout, to_stderr));
            resume.send(()).expect("the agent's thread has waited for the disk");
            pumping.await.unwrap();
        });
        assert!(disk.join().unwrap());
        assert_eq!(text(&output, Stream::Both), "first\nsecond\n");
    }

    #[test]
    fn output_that_waits_for_a_stalled_disk_when_the_reading_is_stopped_is_kept() {
        let output = output_of(1024 * 1024);
        let (resume, disk) = stall(&output);
        let (stdout, to_stdout) = pipe().unwrap();
        let (stderr, _) = pipe().unwrap();
        // The pump cannot pass all of this on while the disk stalls, and the pipe cannot contain all of this.
        let printed = "0123456789abcde\n".repeat(200 * 1024 / 16);
        block_on(async {
            let (stop, pumping) = pump_in_task([stdout, stderr], &output);
            let mut to_stdout = Sender::from_owned_fd(to_stdout.into()).unwrap();
            to_stdout.write_all(printed.as_bytes()).await.unwrap();
            drop((to_stdout, stop));
            yield_now().await;
            resume.send(()).expect("the agent's thread has waited for the disk");
            pumping.await.unwrap();
        });
        assert!(disk.join().unwrap());
        let kept = text(&output, Stream::Stdout);
        assert!(kept == printed, "{} of {} bytes are kept", kept.len(), printed.len());
    }

    #[test]
    fn output_that_is_in_an_open_pipe_when_the_reading_is_stopped_is_kept() {
        let output = output_of(1024);
        let (stdout, mut to_stdout) = pipe().unwrap();
        let (stderr, mut to_stderr) = pipe().unwrap();
        to_stdout.write_all(b"line\nunfinished").unwrap();
        to_stderr.write_all(b"progress").unwrap();
        block_on(async {
            let (stop, pumping) = pump_in_task([stdout, stderr], &output);
            drop(stop);
            pumping.await.unwrap();
        });
        assert_eq!(text(&output, Stream::Stdout), "line\nunfinished");
        assert_eq!(text(&output, Stream::Stderr), "progress");
    }

    #[test]
    fn a_tail_has_whole_characters_and_fits_even_if_bytes_are_invalid() {
        assert_eq!(stderr_tail("…x".as_bytes()), "…x");
        assert_eq!(stderr_tail(&"…x".as_bytes()[1..]), "x");
        assert_eq!(stderr_tail(b""), "");
        let grown = stderr_tail(&[0xff; 4096]);
        assert_eq!(grown.len(), 4095);
        assert!(grown.chars().all(|c| c == '\u{fffd}'));
    }
}
