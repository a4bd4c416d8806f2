//! Computes which bytes of the stream a log keeps, and where its file stores them. The caller reads and writes the
//! file.

use std::collections::VecDeque;

use crate::Gap;

/// Maximum number of gaps that a log remembers, so that the header fits before the data. If bytes are lost after each
/// 64 KiB of output, the log still keeps 15 MiB.
pub(crate) const GAPS_MAX: usize = 250;

/// The kept part of a stream: `start..end` without the gaps.
///
/// Lost bytes take no room in the file. So a byte has two addresses: its offset in the stream, and its position among
/// all bytes that were ever stored. The byte at position `p` is at the place `p % capacity` of the file's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Maximum length of the file's data in bytes.
    pub(crate) capacity: u64,
    /// Offset of the oldest kept byte; `end` if none is kept.
    pub(crate) start: u64,
    /// Offset after the newest byte.
    pub(crate) end: u64,
    /// Number of lost bytes before `start`: the total length of the gaps that the log does not remember.
    pub(crate) forgotten: u64,
    /// The gaps, oldest first. There are kept bytes directly before each gap. The last gap may reach to `end`.
    pub(crate) gaps: VecDeque<Gap>,
}

impl Extent {
    /// An extent without bytes.
    pub(crate) fn empty(capacity: u64) -> Self {
        Self { capacity, start: 0, end: 0, forgotten: 0, gaps: VecDeque::new() }
    }

    /// Number of kept bytes.
    pub(crate) fn kept(&self) -> u64 {
        self.end - self.start - self.gaps.iter().map(|gap| gap.length).sum::<u64>()
    }

    /// The place of the byte at `offset` in the file's data. The byte must be kept.
    pub(crate) fn place(&self, offset: u64) -> u64 {
        self.position(offset) % self.capacity
    }

    /// Number of bytes with a smaller offset that were ever stored, even if the log has dropped them.
    fn position(&self, offset: u64) -> u64 {
        let skipped: u64 = self.gaps.iter().take_while(|gap| gap.offset < offset).map(|gap| gap.length).sum();
        offset - self.forgotten - skipped
    }

    /// The same extent for a file that cannot grow: the new capacity is the number of bytes that were ever stored.
    /// `None` if this number is at least the old capacity, or less than `least`.
    pub(crate) fn shrunk(&self, least: u64) -> Option<Self> {
        // Each position so far is less than the new capacity, so all bytes keep their places.
        let capacity = self.position(self.end);
        (least <= capacity && capacity < self.capacity).then(|| Self { capacity, ..self.clone() })
    }

    /// The first range of kept bytes from `offset` on, up to the next gap or `end`. If no byte is kept from `offset`
    /// on, the result is an empty range at `end`.
    pub(crate) fn run_from(&self, offset: u64) -> (u64, u64) {
        let run = self.runs().find(|(_, run_end)| *run_end > offset);
        run.map_or((self.end, self.end), |(run_start, run_end)| (run_start.max(offset), run_end))
    }

    /// The ranges of kept bytes between the gaps, oldest first. A range is the offset of its first byte and the offset
    /// after its last byte.
    pub(crate) fn runs(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let starts = std::iter::once(self.start).chain(self.gaps.iter().map(|gap| gap.end()));
        let ends = self.gaps.iter().map(|gap| gap.offset).chain([self.end]);
        starts.zip(ends).collect::<Vec<_>>().into_iter().filter(|(from, to)| from < to)
    }

    /// Drops the oldest bytes until there is room for `bytes` more bytes. If `bytes` exceeds the capacity, drops all
    /// bytes.
    pub(crate) fn make_room(&mut self, bytes: u64) {
        let mut surplus = self.kept().saturating_sub(self.capacity.saturating_sub(bytes));
        while surplus > 0 {
            let run_end = self.gaps.front().map_or(self.end, |gap| gap.offset);
            let dropped = surplus.min(run_end - self.start);
            surplus -= dropped;
            self.start += dropped;
            if self.start == run_end {
                self.forget_first_gap();
            }
        }
    }

    /// Moves the end by `bytes` appended bytes, and drops the oldest bytes that no longer fit.
    pub(crate) fn extend(&mut self, bytes: u64) {
        self.end += bytes;
        self.make_room(0);
    }

    /// Moves the end to `offset`. The bytes between the old end and `offset` become a gap. `offset` must not be before
    /// the end. If there are then more than [`GAPS_MAX`] gaps, drops the first gap and all bytes before it.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        let gap = Gap { offset: self.end, length: offset - self.end };
        self.end = offset;
        if self.start == gap.offset {
            // No byte is kept before the gap, so the log need not remember the gap.
            self.start = offset;
            self.forgotten += gap.length;
            return;
        }
        match self.gaps.back_mut() {
            Some(last) if last.end() == gap.offset => last.length += gap.length,
            _ => self.gaps.push_back(gap),
        }
        if self.gaps.len() > GAPS_MAX {
            self.forget_first_gap();
        }
    }

    /// Drops the first gap and all bytes before it.
    fn forget_first_gap(&mut self) {
        if let Some(gap) = self.gaps.pop_front() {
            self.start = gap.end();
            self.forgotten += gap.length;
        }
    }
}
