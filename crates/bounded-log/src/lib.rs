//! A file that keeps the newest bytes of an endless stream.
//!
//! Each byte of the stream has an absolute offset. The first byte of the stream has offset 0. The log keeps the newest
//! bytes, at most `capacity`, and drops older bytes. If bytes are lost before they reach the log, the log notes a
//! [`Gap`] and keeps the bytes before the gap. The file never grows beyond its header and the capacity, and the log
//! never moves a byte in the file.
//!
//! All functions block until the file system has answered. An async caller chooses the thread that calls them.

mod extent;
mod header;

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use extent::Extent;
use header::DATA_BEGIN;
use rustix::fs::{FallocateFlags, fallocate, fstatfs};

/// The type of a file system in memory (statfs(2), TMPFS_MAGIC).
const TMPFS: i64 = 0x0102_1994;

/// Minimum capacity of a log that shrinks because its file cannot grow.
const LEAST_SHRUNK_BYTES: u64 = 64 * 1024;

/// Maximum number of bytes that [`BoundedLog::tail_step`] reads.
const SCAN_BYTES: u64 = 64 * 1024;

/// The newest bytes of one stream.
#[derive(Debug)]
pub struct BoundedLog {
    file: File,
    extent: Extent,
    kind: Kind,
}

/// Bytes of the stream that were lost before they reached the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The offset of the first lost byte.
    pub offset: u64,
    /// Number of lost bytes, at least 1.
    pub length: u64,
}

impl Gap {
    /// The offset of the first byte after the gap.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// How far a search for the last lines has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The last lines begin at this offset.
    Begins(u64),
    /// The search must continue.
    Before {
        /// The next step searches bytes before this offset.
        offset: u64,
        /// Number of lines that are still to be found, at least 1.
        lines: u64,
    },
}

/// Whether the log outlives its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The file has no name, and no header, because nobody can open it again.
    Anonymous,
    /// Each change is written to the header, so that the file can be opened again.
    Named,
}

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A call of the file system failed.
    #[error("open the log \"{path}\"")]
    Io {
        /// The file.
        path: PathBuf,
        /// The file system's error.
        #[source]
        source: io::Error,
    },
    /// The file is not a log, or is a damaged log.
    #[error("the log \"{path}\" is damaged: {reason}; remove the file to begin a new log")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Why the file is not a valid log, as the end of a sentence.
        reason: &'static str,
    },
}

impl BoundedLog {
    /// Creates an anonymous log: its file in `dir` has no name, and vanishes with the process.
    pub fn create_anonymous(dir: &Path, capacity: NonZeroU64) -> io::Result<Self> {
        let file = tempfile::tempfile_in(dir)?;
        Ok(Self { file, extent: Extent::empty(capacity.get()), kind: Kind::Anonymous })
    }

    /// Opens the log in the file `path`. If the file does not exist or is empty, begins a log with `capacity`. An
    /// existing log keeps its own capacity, and continues where it ended, even after a crash of its writer. Only one
    /// writer at a time may have the file open.
    ///
    /// # Errors
    /// [`OpenError::Io`], and [`OpenError::Corrupt`] for a file that is not a valid log.
    pub fn open(path: &Path, capacity: NonZeroU64) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let corrupt = |reason| OpenError::Corrupt { path: path.to_owned(), reason };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        if length == 0 {
            let log = Self { file, extent: Extent::empty(capacity.get()), kind: Kind::Named };
            log.write_header(&log.extent).map_err(failed)?;
            return Ok(log);
        }
        let mut bytes = vec![0; length.min(DATA_BEGIN) as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let extent = header::decode(&bytes).map_err(corrupt)?;
        if length < header::least_file_length(&extent) {
            return Err(corrupt("it is shorter than its header says"));
        }
        Ok(Self { file, extent, kind: Kind::Named })
    }

    /// The offset of the oldest kept byte, or [`BoundedLog::end`] if no byte is kept.
    pub fn start(&self) -> u64 {
        self.extent.start
    }

    /// The offset after the newest byte: the number of bytes that were appended or skipped.
    pub fn end(&self) -> u64 {
        self.extent.end
    }

    /// The offset of the first kept byte from `offset` on; [`BoundedLog::end`] if no such byte is kept.
    pub fn next_kept(&self, offset: u64) -> u64 {
        self.extent.run_from(offset).0
    }

    /// The gaps between [`BoundedLog::start`] and [`BoundedLog::end`], oldest first. There are kept bytes before each
    /// gap. The last gap may reach to the end.
    pub fn gaps(&self) -> impl Iterator<Item = Gap> {
        self.extent.gaps.iter().copied()
    }

    /// Reserves disk space for `bytes` bytes, but not for more than the capacity. These bytes then fit even if the disk
    /// fills up later. In a file system in memory, does nothing: reserved space would take memory from programs.
    ///
    /// # Errors
    /// The file system's error, if the file system has too little space or cannot reserve space. The log works without
    /// the reservation.
    pub fn reserve(&self, bytes: u64) -> io::Result<()> {
        if fstatfs(&self.file)?.f_type as i64 == TMPFS {
            return Ok(());
        }
        Ok(fallocate(&self.file, FallocateFlags::KEEP_SIZE, DATA_BEGIN, bytes.min(self.extent.capacity))?)
    }

    /// Appends `bytes` to the end. An anonymous log shrinks if the disk becomes full before the log has reached its
    /// capacity, and the log has stored at least 64 KiB. Its new capacity is the number of bytes stored so far. From
    /// then on, new bytes replace the oldest bytes. A named log does not shrink, because later processes need its
    /// capacity. After an error, the caller can try again later.
    ///
    /// # Errors
    /// The file system's error. Then the log has none of `bytes`, and may have dropped its oldest bytes.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let error = match self.append_in_place(bytes) {
            Err(error) if is_full(&error) && self.kind == Kind::Anonymous => error,
            done => return done,
        };
        self.extent = self.extent.shrunk(LEAST_SHRUNK_BYTES).ok_or(error)?;
        self.append_in_place(bytes)
    }

    fn append_in_place(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let length = bytes.len() as u64;
        let mut room = self.extent.clone();
        room.make_room(length);
        if room != self.extent {
            // Remove the oldest bytes from the header before they are overwritten. Otherwise, if the program crashes
            // after the bytes are overwritten, the log would present newer bytes as its oldest bytes.
            self.write_header(&room)?;
            self.extent = room;
        }
        let mut extended = self.extent.clone();
        extended.extend(length);
        let kept = length.min(extended.capacity);
        self.write_data(&bytes[(length - kept) as usize..], extended.place(extended.end - kept))?;
        self.write_header(&extended)?;
        self.extent = extended;
        Ok(())
    }

    /// Appends `bytes`, whose first byte is at `offset` in the stream. Omits the bytes before the log's end, because
    /// the log has already received them. If `offset` is after the end, leaves a gap.
    pub fn append_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.skip_to(offset)?;
        let known = (self.end() - offset).min(bytes.len() as u64) as usize;
        self.append(&bytes[known..])
    }

    /// Moves the end to `offset` and leaves a [`Gap`]. If the log then has more than 250 gaps, drops the oldest gap and
    /// all bytes before it. If `offset` is at or before the end, changes nothing.
    ///
    /// # Errors
    /// The file system's error. Then nothing has changed.
    pub fn skip_to(&mut self, offset: u64) -> io::Result<()> {
        if offset <= self.end() {
            return Ok(());
        }
        let mut skipped = self.extent.clone();
        skipped.skip_to(offset);
        self.write_header(&skipped)?;
        self.extent = skipped;
        Ok(())
    }

    /// Fills `buffer` with the bytes from the first kept byte at or after `offset` up to the next gap or the end.
    /// Returns the offset of the first byte read, and the number of bytes.
    ///
    /// If the returned offset is after `offset`, the bytes between these offsets were dropped or lost. This also holds
    /// if no bytes were read. If the buffer is not full, a gap may follow. To read the bytes after the gap, call again
    /// with the offset after the last byte read.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<(u64, usize)> {
        let (from, run_end) = self.extent.run_from(offset);
        let wanted = (run_end - from).min(buffer.len() as u64) as usize;
        if wanted == 0 {
            return Ok((from, 0));
        }
        let place = self.extent.place(from);
        let before_wrap = (self.extent.capacity - place).min(wanted as u64) as usize;
        let (first, second) = buffer[..wanted].split_at_mut(before_wrap);
        self.file.read_exact_at(first, DATA_BEGIN + place)?;
        self.file.read_exact_at(second, DATA_BEGIN)?;
        Ok((from, wanted))
    }

    /// The offset where the last `lines` lines begin. If fewer lines are kept, returns [`BoundedLog::start`]. A last
    /// line without a newline counts as a line. A part of a line before or after a gap also counts as a line.
    pub fn tail_offset(&self, lines: u64) -> io::Result<u64> {
        let mut tail = Tail::Before { offset: self.end(), lines };
        loop {
            match tail {
                Tail::Begins(offset) => return Ok(offset),
                Tail::Before { offset, lines } => tail = self.tail_step(offset, lines)?,
            }
        }
    }

    /// One step of [`BoundedLog::tail_offset`]. A step searches 64 KiB at most. The first step begins at the log's end.
    /// Each later step gets the offset and the number of lines that the previous step returned. Between two steps, the
    /// log may grow and drop bytes.
    pub fn tail_step(&self, offset: u64, lines: u64) -> io::Result<Tail> {
        let offset = offset.min(self.end());
        let Some((run_start, run_end)) = self.extent.runs().rfind(|(run_start, _)| *run_start < offset) else {
            return Ok(Tail::Begins(self.start()));
        };
        if lines == 0 {
            return Ok(Tail::Begins(offset));
        }
        let block_end = offset.min(run_end);
        let block_start = block_end.saturating_sub(SCAN_BYTES).max(run_start);
        let mut block = vec![0; (block_end - block_start) as usize];
        self.read(block_start, &mut block)?;
        let begins =
            (0..block.len()).rev().filter(|index| block[*index] == b'\n').map(|index| block_start + index as u64 + 1);
        // A newline at the end of a run of kept bytes begins no line in this run. The run's start always begins a line.
        let begins = begins.filter(|begin| *begin != run_end).chain((block_start == run_start).then_some(run_start));
        let mut left = lines;
        for begin in begins {
            left -= 1;
            if left == 0 {
                return Ok(Tail::Begins(begin));
            }
        }
        Ok(Tail::Before { offset: block_start, lines: left })
    }

    /// Writes `bytes` to the file's data, from `place` on. At the end of the data, continues at the beginning of the
    /// data. `bytes` must not be longer than the capacity.
    fn write_data(&self, bytes: &[u8], place: u64) -> io::Result<()> {
        let before_wrap = (self.extent.capacity - place).min(bytes.len() as u64) as usize;
        let (first, second) = bytes.split_at(before_wrap);
        self.file.write_all_at(first, DATA_BEGIN + place)?;
        self.file.write_all_at(second, DATA_BEGIN)
    }

    /// Writes the header of a named log.
    fn write_header(&self, extent: &Extent) -> io::Result<()> {
        match self.kind {
            Kind::Anonymous => Ok(()),
            Kind::Named => self.file.write_all_at(&header::encode(extent), 0),
        }
    }
}

/// Whether the error says that a file cannot grow.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    [StorageFull, QuotaExceeded, FileTooLarge].contains(&error.kind())
}
