//! A file that keeps the newest bytes of an endless stream.
//!
//! Every byte of the stream has an absolute offset, counted from 0 for as long as the log lives; the newest `capacity`
//! bytes are kept, the rest is dropped. The bytes of offset `o` stand in the file at `HEADER_BYTES + o % capacity`, so
//! the file never grows beyond its capacity and nothing is ever moved.
//!
//! All calls block for as long as the file system takes; who lives in an async runtime decides where to make them.

mod header;

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use header::{HEADER_BYTES, Header};

/// Bytes that are looked through at once when lines are counted from the end.
const SCAN_BYTES: u64 = 64 * 1024;

/// The newest bytes of one stream.
#[derive(Debug)]
pub struct BoundedLog {
    file: File,
    capacity: u64,
    start: u64,
    end: u64,
    kind: Kind,
}

/// Whether the log outlives its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The file has no name, so its header would have no reader.
    Anonymous,
    /// The header follows each change, so that the file can be opened again.
    Named,
}

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file system refused.
    #[error("open the log \"{path}\"")]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        #[source]
        source: io::Error,
    },
    /// The file is no log, or a damaged one.
    #[error("the log \"{path}\" is damaged: {reason}; remove it to begin a new one")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: &'static str,
    },
}

impl BoundedLog {
    /// A log in a file without a name in `dir`, which vanishes with the process.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create_anonymous(dir: &Path, capacity: NonZeroU64) -> io::Result<Self> {
        let file = tempfile::tempfile_in(dir)?;
        Ok(Self { file, capacity: capacity.get(), start: 0, end: 0, kind: Kind::Anonymous })
    }

    /// The log in the file `path`, made with `capacity` if it does not exist. One that exists goes on where it ended,
    /// also after a crash of its writer, and keeps the capacity that it was made with. Only one writer may have it
    /// open.
    ///
    /// # Errors
    /// [`OpenError::Io`], and [`OpenError::Corrupt`] for a file that is not such a log.
    pub fn open(path: &Path, capacity: NonZeroU64) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let corrupt = |reason| OpenError::Corrupt { path: path.to_owned(), reason };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        if length == 0 {
            let log = Self { file, capacity: capacity.get(), start: 0, end: 0, kind: Kind::Named };
            log.write_header(0).map_err(failed)?;
            return Ok(log);
        }
        if length < HEADER_BYTES {
            return Err(corrupt("it is shorter than its header"));
        }
        let mut bytes = [0; HEADER_BYTES as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let header = Header::decode(&bytes).map_err(corrupt)?;
        if length < header.least_file_length() {
            return Err(corrupt("it is shorter than its header says"));
        }
        let Header { capacity, start, end } = header;
        Ok(Self { file, capacity, start, end, kind: Kind::Named })
    }

    /// The offset of the oldest byte that is kept; as many bytes have been dropped.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The offset behind the newest byte; as many bytes have been appended or skipped.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Adds `bytes` to the end.
    ///
    /// # Errors
    /// What the file system says (it may be full). None of `bytes` is in the log then; the oldest bytes may be dropped.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = self.end + bytes.len() as u64;
        let oldest_kept = end.saturating_sub(self.capacity);
        if oldest_kept > self.start {
            // What is about to be overwritten must be gone from the header before: a crash between the two would
            // otherwise leave a log whose oldest bytes are newer ones in disguise.
            self.start = oldest_kept.min(self.end);
            self.write_header(self.end)?;
        }
        let kept = bytes.len().min(usize::try_from(self.capacity).unwrap_or(usize::MAX));
        self.write_at(&bytes[bytes.len() - kept..], end - kept as u64)?;
        self.write_header(end)?;
        self.start = self.start.max(oldest_kept);
        self.end = end;
        Ok(())
    }

    /// Moves the end on to `offset` without bytes: what lies between was lost before it came here. What was kept is
    /// dropped, since a log holds one piece of its stream without holes. An `offset` at or before the end changes
    /// nothing.
    ///
    /// # Errors
    /// What the file system says.
    pub fn skip_to(&mut self, offset: u64) -> io::Result<()> {
        if offset <= self.end {
            return Ok(());
        }
        self.start = offset;
        self.end = offset;
        self.write_header(offset)
    }

    /// Fills `buffer` from `offset`, or from [`BoundedLog::start`] if that is later, or not at all if `offset` is at
    /// or behind the end. Returns the offset of the first byte read, and how many were.
    ///
    /// # Errors
    /// What the file system says.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<(u64, usize)> {
        let from = offset.clamp(self.start, self.end);
        let wanted = (self.end - from).min(buffer.len() as u64) as usize;
        let place = from % self.capacity;
        let before_wrap = (self.capacity - place).min(wanted as u64) as usize;
        let (first, second) = buffer[..wanted].split_at_mut(before_wrap);
        self.file.read_exact_at(first, HEADER_BYTES + place)?;
        self.file.read_exact_at(second, HEADER_BYTES)?;
        Ok((from, wanted))
    }

    /// The offset where the last `lines` lines begin; [`BoundedLog::start`] if fewer are kept. A last line without a
    /// newline counts.
    ///
    /// # Errors
    /// What the file system says.
    pub fn tail_offset(&self, lines: u64) -> io::Result<u64> {
        if lines == 0 {
            return Ok(self.end);
        }
        let mut buffer = vec![0; SCAN_BYTES as usize];
        let mut left = lines;
        let mut block_end = self.end;
        while block_end > self.start {
            let block_start = block_end.saturating_sub(SCAN_BYTES).max(self.start);
            let (_, n) = self.read(block_start, &mut buffer[..(block_end - block_start) as usize])?;
            for index in (0..n).rev() {
                let behind = block_start + index as u64 + 1;
                // The newline that ends the last line begins none.
                if buffer[index] != b'\n' || behind == self.end {
                    continue;
                }
                left -= 1;
                if left == 0 {
                    return Ok(behind);
                }
            }
            block_end = block_start;
        }
        Ok(self.start)
    }

    /// Writes `bytes`, at most the capacity, to where `offset` stands.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let place = offset % self.capacity;
        let before_wrap = (self.capacity - place).min(bytes.len() as u64) as usize;
        let (first, second) = bytes.split_at(before_wrap);
        self.file.write_all_at(first, HEADER_BYTES + place)?;
        self.file.write_all_at(second, HEADER_BYTES)
    }

    /// Says in the file that the log ends at `end`.
    fn write_header(&self, end: u64) -> io::Result<()> {
        match self.kind {
            Kind::Anonymous => Ok(()),
            Kind::Named => {
                let start = self.start.max(end.saturating_sub(self.capacity));
                let header = Header { capacity: self.capacity, start, end };
                self.file.write_all_at(&header.encode(), 0)
            }
        }
    }
}
