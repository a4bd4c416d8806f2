//! When the bytes of a replica's output were printed, in a file beside the output. If this file is missing or damaged,
//! the output has no times. This is no error. The methods block the thread.

use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;

use bounded_log::{BoundedLog, OpenError};
use protocol::ids::UnixMillis;
use tracing::warn;

use super::folder::Names;
use crate::host::files::unless_absent;

/// Minimum time between two marks in milliseconds.
const INTERVAL_MS: u64 = 10;

/// Length of a mark in the file: its offset and its time, as little-endian numbers.
const MARK_BYTES: u64 = 16;

/// Maximum bytes of marks. The newest 262,144 marks are kept. Lines that were printed within [`INTERVAL_MS`] share a
/// mark.
const KEPT_BYTES: NonZeroU64 = NonZeroU64::new(262_144 * MARK_BYTES).expect("not zero");

/// The bytes from `offset` to the next mark were printed at `at` or shortly after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The offset of the first byte.
    pub offset: u64,
    /// By the master's clock. If this clock jumps back, the time stays the same until the clock has caught up.
    pub at: UnixMillis,
}

/// The file of marks. Their offsets increase, and their times never decrease.
#[derive(Debug)]
pub(super) struct Times {
    names: Names,
    /// Boxed, because a master has thousands of files that are closed.
    open: Option<Box<Open>>,
    /// Whether the last mark could not be written.
    is_failing: bool,
}

#[derive(Debug)]
struct Open {
    file: BoundedLog,
    newest: Option<Mark>,
}

impl Times {
    pub(super) fn new(names: Names) -> Self {
        Self { names, open: None, is_failing: false }
    }

    fn path(&self) -> PathBuf {
        self.names.with_extension("times")
    }

    /// Notes that the bytes from `mark.offset` to the end of the output were printed at `mark.at`.
    pub(super) fn note(&mut self, mark: Mark) {
        let noted = self.try_note(mark);
        let was_failing = std::mem::replace(&mut self.is_failing, noted.is_err());
        if let (Err(error), false) = (noted, was_failing) {
            warn!(%error, file = %self.path().display(), "could not note when output was printed");
        }
    }

    /// The marks of the bytes from `from` to `to`: the newest mark at or before `from`, and all marks between them.
    pub(super) fn between(&mut self, from: u64, to: u64) -> Vec<Mark> {
        self.if_kept(vec![], |open| open.between(from, to))
    }

    /// The offset of the first byte that was printed at or after `since`. `None` if there is none, or if its time is
    /// unknown.
    pub(super) fn first_since(&mut self, since: UnixMillis) -> Option<u64> {
        self.if_kept(None, |open| open.first_since(since))
    }

    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Removes the file.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        self.close();
        unless_absent(fs::remove_file(self.path()))
    }

    fn try_note(&mut self, mark: Mark) -> io::Result<()> {
        if self.open()?.newest.is_some_and(|newest| mark.offset <= newest.offset) {
            // The output was replaced, or is older than the file of marks after a crash of the machine.
            self.remove()?;
        }
        self.open()?.note(mark)
    }

    /// Runs `work` if there is a file. If the file cannot be read, returns `nothing`.
    fn if_kept<T>(&mut self, nothing: T, work: impl FnOnce(&Open) -> io::Result<T>) -> T {
        let is_there = self.open.is_some() || self.path().exists();
        if !is_there {
            return nothing;
        }
        self.open().and_then(|open| work(open)).unwrap_or_else(|error| {
            warn!(%error, file = %self.path().display(), "could not read when output was printed");
            nothing
        })
    }

    /// The open file. Removes a damaged file and begins a new one.
    fn open(&mut self) -> io::Result<&mut Open> {
        if self.open.is_none() {
            self.open = Some(Box::new(match self.opened() {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    warn!(%error, "removing a damaged file of times");
                    self.remove()?;
                    self.opened()?
                }
                opened => opened?,
            }));
        }
        Ok(self.open.as_mut().expect("the file was just opened"))
    }

    fn opened(&self) -> io::Result<Open> {
        let file = BoundedLog::open(&self.path(), KEPT_BYTES).map_err(|error| match error {
            OpenError::Io { source, .. } => source,
            error @ OpenError::Corrupt { .. } => io::Error::new(io::ErrorKind::InvalidData, error),
        })?;
        let is_whole = [file.start(), file.end()].iter().all(|offset| offset.is_multiple_of(MARK_BYTES));
        if !is_whole || file.gaps().next().is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not consist of whole marks"));
        }
        let mut open = Open { file, newest: None };
        let (oldest, end) = open.indexes();
        if oldest < end {
            open.newest = Some(open.mark(end - 1)?);
        }
        Ok(open)
    }
}

impl Open {
    fn note(&mut self, mark: Mark) -> io::Result<()> {
        if self.newest.is_some_and(|newest| mark.at.0 < newest.at.0.saturating_add(INTERVAL_MS)) {
            return Ok(());
        }
        let bytes = [mark.offset.to_le_bytes(), mark.at.0.to_le_bytes()];
        self.file.append(bytes.as_flattened())?;
        self.newest = Some(mark);
        Ok(())
    }

    fn between(&self, from: u64, to: u64) -> io::Result<Vec<Mark>> {
        let (oldest, _) = self.indexes();
        let first = self.partition_point(|mark| mark.offset <= from)?.saturating_sub(1).max(oldest);
        let end = self.partition_point(|mark| mark.offset < to)?;
        self.marks(first, end)
    }

    fn first_since(&self, since: UnixMillis) -> io::Result<Option<u64>> {
        let index = self.partition_point(|mark| mark.at < since)?;
        let (_, end) = self.indexes();
        if index < end { self.mark(index).map(|mark| Some(mark.offset)) } else { Ok(None) }
    }

    /// The index of the oldest mark, and the index after the newest mark.
    fn indexes(&self) -> (u64, u64) {
        (self.file.start() / MARK_BYTES, self.file.end() / MARK_BYTES)
    }

    /// The index of the first mark for which `is_before` is false. `is_before` must be true for all earlier marks, and
    /// false for all later marks.
    fn partition_point(&self, is_before: impl Fn(Mark) -> bool) -> io::Result<u64> {
        let (mut from, mut to) = self.indexes();
        while from < to {
            let middle = u64::midpoint(from, to);
            if is_before(self.mark(middle)?) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        Ok(from)
    }

    fn mark(&self, index: u64) -> io::Result<Mark> {
        self.marks(index, index + 1)?.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// The marks with the indexes from `first` to before `end`.
    fn marks(&self, first: u64, end: u64) -> io::Result<Vec<Mark>> {
        let mut bytes = vec![0; (end.saturating_sub(first) * MARK_BYTES) as usize];
        let (_, length) = self.file.read(first * MARK_BYTES, &mut bytes)?;
        let (numbers, _rest) = bytes[..length].as_chunks::<8>();
        let (marks, _rest) = numbers.as_chunks::<2>();
        Ok(marks.iter().map(|mark| mark.map(u64::from_le_bytes)).map(Mark::from).collect())
    }
}

impl From<[u64; 2]> for Mark {
    fn from([offset, at]: [u64; 2]) -> Self {
        Self { offset, at: UnixMillis(at) }
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::{ReplicaId, Role};
    use tempfile::{TempDir, tempdir};

    use super::*;

    fn mark(offset: u64, at: u64) -> Mark {
        Mark::from([offset, at])
    }

    fn times(dir: &TempDir, marks: impl IntoIterator<Item = (u64, u64)>) -> Times {
        let mut times = Times::new(Names::new(dir.path().into(), ReplicaId { role: Role::Worker, index: 0 }));
        marks.into_iter().for_each(|(offset, at)| times.note(mark(offset, at)));
        times
    }

    #[test]
    fn the_marks_of_a_range_begin_with_the_mark_of_its_first_byte() {
        let dir = tempdir().unwrap();
        let mut times = times(&dir, [(10, 100), (20, 200), (30, 300), (40, 400)]);
        assert_eq!(times.between(25, 40), [mark(20, 200), mark(30, 300)]);
        assert_eq!(times.between(20, 21), [mark(20, 200)]);
        assert_eq!(times.between(0, 11), [mark(10, 100)]);
        assert_eq!(times.between(0, 10), []);
        assert_eq!(times.between(90, 99), [mark(40, 400)]);
    }

    #[test]
    fn the_first_byte_since_a_time_is_found() {
        let dir = tempdir().unwrap();
        let mut times = times(&dir, [(10, 100), (20, 200), (30, 300)]);
        let first = [0, 100, 101, 300, 301].map(|since| times.first_since(UnixMillis(since)));
        assert_eq!(first, [Some(10), Some(10), Some(20), Some(30), None]);
    }

    #[test]
    fn times_survive_the_end_of_the_process() {
        let dir = tempdir().unwrap();
        times(&dir, [(0, 100), (10, 200)]);
        let mut later = times(&dir, [(20, 205), (30, 300)]);
        assert_eq!(later.between(0, 99), [mark(0, 100), mark(10, 200), mark(30, 300)]);
    }

    #[test]
    fn the_times_stay_in_order_if_the_clock_jumps_back() {
        let dir = tempdir().unwrap();
        let mut times = times(&dir, [(0, 100), (10, 900), (20, 300), (30, 905), (40, 1000)]);
        assert_eq!(times.between(0, 99), [mark(0, 100), mark(10, 900), mark(40, 1000)]);
    }

    #[test]
    fn output_that_begins_again_has_only_its_own_times() {
        let dir = tempdir().unwrap();
        let mut times = times(&dir, [(0, 100), (10, 900), (0, 300)]);
        assert_eq!(times.between(0, 99), [mark(0, 300)]);
    }

    #[test]
    fn without_a_file_or_with_a_damaged_file_no_times_are_known_until_the_next_mark() {
        let dir = tempdir().unwrap();
        let whole = fs::read(times(&dir, [(10, 100), (20, 200)]).path()).unwrap();
        for damaged in [b"not a log", &whole[..whole.len() - 1], &whole[..100], b""] {
            fs::write(times(&dir, [(10, 100), (20, 200)]).path(), damaged).unwrap();
            let mut times = times(&dir, []);
            assert_eq!((times.between(0, 99), times.first_since(UnixMillis(0))), (vec![], None));
            times.note(mark(30, 300));
            assert_eq!(times.between(0, 99), [mark(30, 300)]);
            times.remove().unwrap();
            assert_eq!((times.between(0, 99), times.first_since(UnixMillis(0))), (vec![], None));
        }
    }

    #[test]
    fn the_newest_times_are_kept_if_there_are_too_many() {
        let dir = tempdir().unwrap();
        let most = KEPT_BYTES.get() / MARK_BYTES;
        let mut times = times(&dir, []);
        times.open().unwrap().file.append(&[0; 16].repeat(most as usize)).unwrap();
        times.note(mark(7, 70));
        assert_eq!(times.open().unwrap().indexes(), (1, most + 1));
        assert_eq!(times.between(6, 8), [mark(0, 0), mark(7, 70)]);
    }
}
