//! The file that keeps one replica's output. Its methods block the thread, so they run inside [`super::disk::run`].

use std::fs;
use std::io;
use std::sync::Arc;

use bounded_log::{BoundedLog, OpenError, Tail};
use protocol::agent::LogBase;
use protocol::ids::UnixMillis;
use protocol::output::LOG_LINE_BYTES;
use tracing::warn;

use super::elsewhere::Elsewhere;
use super::folder::Names;
use super::times::{Mark, Times};
use super::{CHUNK_BYTES, Chunk, KEPT_BYTES, Wanted};
use crate::host::files::if_there;

/// One replica's file. It is created when the first output arrives.
#[derive(Debug)]
pub(super) struct LogFile {
    names: Names,
    state: FileState,
    times: Times,
    elsewhere: Arc<Elsewhere>,
}

#[derive(Debug)]
enum FileState {
    /// The file is opened when it is needed.
    Closed,
    Open(Box<BoundedLog>),
    /// The output was removed. Remaining readers and writers do not create the file again.
    Removed,
}

impl LogFile {
    pub(super) fn new(names: Names, elsewhere: Arc<Elsewhere>) -> Self {
        Self { times: Times::new(names.clone()), names, state: FileState::Closed, elsewhere }
    }

    /// The offset after the newest byte.
    pub(super) fn end(&mut self) -> io::Result<u64> {
        self.if_kept(0, |log| Ok(log.end()))
    }

    /// The offset after the newest byte. Closes the file.
    pub(super) fn end_and_close(&mut self) -> io::Result<u64> {
        let end = self.end();
        self.close();
        end
    }

    /// Keeps bytes that begin at `offset` and were printed at `at`, and returns the new end. Bytes that the file has
    /// already are skipped. If `offset` is after the end, the file keeps a gap there, even if `bytes` is empty.
    pub(super) fn append(&mut self, offset: u64, bytes: &[u8], at: UnixMillis) -> io::Result<u64> {
        self.create_folder()?;
        let log = self.log()?;
        let first_new = log.end().max(offset);
        log.append_at(offset, bytes)?;
        let end = log.end();
        if first_new < end {
            self.times.note(Mark { offset: first_new, at });
        }
        Ok(end)
    }

    /// Reads one chunk from `offset`, or from the first kept byte after it. The chunk never extends across a gap.
    pub(super) fn read(&mut self, offset: u64, wanted: Wanted) -> io::Result<Chunk> {
        let nothing = Chunk { offset: offset.max(self.elsewhere.first_here()), bytes: vec![], marks: vec![] };
        let mut chunk = self.if_kept(nothing, |log| {
            let mut bytes = vec![0; CHUNK_BYTES];
            let (offset, length) = log.read(offset, &mut bytes)?;
            bytes.truncate(length);
            Ok(Chunk { offset, bytes, marks: vec![] })
        })?;
        if wanted == Wanted::BytesAndTimes {
            chunk.marks = self.times.between(chunk.offset, chunk.offset + chunk.bytes.len() as u64);
        }
        Ok(chunk)
    }

    /// The beginning of the first line with a byte that was printed at or after `since`. If there is none, the offset
    /// of the end. Bytes whose time is unknown count as older.
    pub(super) fn offset_since(&mut self, since: UnixMillis) -> io::Result<u64> {
        match self.times.first_since(since) {
            Some(offset) => self.if_kept(offset, |log| beginning_of_line(log, offset)),
            None => self.end(),
        }
    }

    /// One step of the search for the last lines.
    pub(super) fn tail_step(&mut self, offset: u64, lines: u64) -> io::Result<Tail> {
        self.if_kept(Tail::Begins(0), |log| log.tail_step(offset, lines))
    }

    /// The offset at which the output of the agent with this boot id begins. The first call for an agent stores the
    /// offset. See [`Elsewhere::base`] for `told` and `start`.
    pub(super) fn base_of(&mut self, boot_id: &str, told: Option<LogBase>, start: u32) -> io::Result<u64> {
        if matches!(self.state, FileState::Removed) {
            return Err(removed());
        }
        let path = self.names.with_extension("base");
        let known = if_there(fs::read_to_string(&path))?;
        let newest = known.as_deref().and_then(|known| known.split_once(' ')).filter(|(known, _)| *known == boot_id);
        if let Some(base) = newest.and_then(|(_, base)| base.trim_end().parse().ok()) {
            return Ok(base);
        }
        // Without a file, this is the first agent that this master has seen. A disk may have lost the content of the file.
        let base = if known.is_none() { self.elsewhere.base(told, start) } else { self.end()? };
        self.create_folder()?;
        // Write a new file first: if the disk is full, the old file must remain.
        let new = path.with_extension("base.new");
        fs::write(&new, format!("{boot_id} {base}\n"))?;
        fs::rename(&new, &path)?;
        Ok(base)
    }

    /// Drops every byte. The offset of the end does not change.
    pub(super) fn drop_output(&mut self) -> io::Result<()> {
        let end = self.end()?;
        if end == 0 {
            return Ok(());
        }
        self.close();
        fs::remove_file(self.names.log())?;
        self.times.remove()?;
        self.append(end, &[], UnixMillis(0)).map(drop)
    }

    pub(super) fn close(&mut self) {
        self.times.close();
        if matches!(self.state, FileState::Open(_)) {
            self.state = FileState::Closed;
        }
    }

    pub(super) fn remove(&mut self) {
        self.times.close();
        self.state = FileState::Removed;
    }

    /// Creates the folder of a file that is not open.
    fn create_folder(&self) -> io::Result<()> {
        if !matches!(self.state, FileState::Closed) {
            return Ok(());
        }
        fs::create_dir_all(self.names.dir())
    }

    /// Opens the file. Renames an unreadable file and begins a new one, so that later output is kept.
    fn open(&self) -> io::Result<BoundedLog> {
        let path = self.names.log();
        let open = || BoundedLog::open(&path, KEPT_BYTES);
        match open() {
            Err(error @ OpenError::Corrupt { .. }) => {
                warn!(%error, "renaming an unreadable output file");
                fs::rename(&path, self.names.with_extension("unreadable"))?;
                open()
            }
            opened => opened,
        }
        .map_err(|error| match error {
            OpenError::Io { source, .. } => source,
            error @ OpenError::Corrupt { .. } => io::Error::other(error),
        })
    }

    /// Runs `work` on the file, or returns `nothing` if there is no file.
    fn if_kept<T>(&mut self, nothing: T, work: impl FnOnce(&BoundedLog) -> io::Result<T>) -> io::Result<T> {
        let is_there = match &self.state {
            FileState::Open(_) => true,
            FileState::Removed => false,
            FileState::Closed => self.names.log().try_exists()?,
        };
        if is_there { work(self.log()?) } else { Ok(nothing) }
    }

    /// The open file.
    fn log(&mut self) -> io::Result<&mut BoundedLog> {
        if matches!(self.state, FileState::Closed) {
            self.state = FileState::Open(Box::new(self.open()?));
        }
        match &mut self.state {
            FileState::Open(log) => Ok(log),
            FileState::Closed | FileState::Removed => Err(removed()),
        }
    }
}

/// The offset after the last newline before `offset`. If the line begins more than [`LOG_LINE_BYTES`] before `offset`,
/// `offset` itself: readers get such a long line in pieces.
fn beginning_of_line(log: &BoundedLog, offset: u64) -> io::Result<u64> {
    let from = offset.saturating_sub(LOG_LINE_BYTES as u64);
    let mut before = vec![0; (offset - from) as usize];
    let (first, length) = log.read(from, &mut before)?;
    if first + length as u64 != offset {
        // There is a gap between `from` and `offset`, or the bytes after `from` are no longer kept.
        return Ok(offset);
    }
    let newline = before[..length].iter().rposition(|byte| *byte == b'\n');
    Ok(newline.map_or(if first <= log.start() { first } else { offset }, |newline| first + newline as u64 + 1))
}

fn removed() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the job and its output were deleted")
}
