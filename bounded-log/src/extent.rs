//! Which bytes of the stream a log keeps, and where they stand in its file. Pure: the caller reads and writes the file.

use std::collections::VecDeque;

use crate::Gap;

/// Gaps that a log remembers; their number bounds the header. A slow reader leaves one gap for each 64 KiB that it still
/// gets, so this is enough for 15 MiB of such pieces.
pub(crate) const GAPS_MAX: usize = 250;

/// The kept part of a stream: `start..end` without its gaps.
///
/// Bytes that were lost take no room in the file. So a byte has two addresses: its offset in the stream, and its
/// position among all bytes that were ever stored. Position `p` stands in the file at `p % capacity` of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Bytes that the file has room for.
    pub(crate) capacity: u64,
    /// Offset of the oldest kept byte; `end` if none is kept.
    pub(crate) start: u64,
    /// Offset after the newest byte.
    pub(crate) end: u64,
    /// Lost bytes before `start` that never took room: the sum of the gaps that are forgotten.
    pub(crate) forgotten: u64,
    /// In order, apart from each other, each after `start`. The last may reach to `end`.
    pub(crate) gaps: VecDeque<Gap>,
}

impl Extent {
    /// Nothing yet.
    pub(crate) fn empty(capacity: u64) -> Self {
        Self { capacity, start: 0, end: 0, forgotten: 0, gaps: VecDeque::new() }
    }

    /// Number of kept bytes.
    pub(crate) fn kept(&self) -> u64 {
        self.end - self.start - self.gaps.iter().map(|gap| gap.length).sum::<u64>()
    }

    /// Where the byte at `offset` stands in the data. `offset` lies in no gap and not before `start`.
    pub(crate) fn place(&self, offset: u64) -> u64 {
        self.position(offset) % self.capacity
    }

    /// How many bytes were ever stored before `offset`.
    fn position(&self, offset: u64) -> u64 {
        let skipped: u64 = self.gaps.iter().take_while(|gap| gap.offset < offset).map(|gap| gap.length).sum();
        offset - self.forgotten - skipped
    }

    /// The same extent with room for no more than the file holds by now, for a file that cannot grow. `None` if the file
    /// has its full length already, or is shorter than `least`.
    pub(crate) fn shrunk(&self, least: u64) -> Option<Self> {
        // Positions below the new capacity keep their places, and no byte stands at another one yet.
        let capacity = self.position(self.end);
        (least <= capacity && capacity < self.capacity).then(|| Self { capacity, ..self.clone() })
    }

    /// The first kept run of bytes that ends after `offset`, from `offset` on if that lies in it; an empty run at `end`
    /// if there is none.
    pub(crate) fn run_from(&self, offset: u64) -> (u64, u64) {
        let run = self.runs().find(|(_, run_end)| *run_end > offset);
        run.map_or((self.end, self.end), |(run_start, run_end)| (run_start.max(offset), run_end))
    }

    /// The kept runs of bytes between the gaps, oldest first: each from its first offset to the offset after its last.
    pub(crate) fn runs(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let starts = std::iter::once(self.start).chain(self.gaps.iter().map(|gap| gap.end()));
        let ends = self.gaps.iter().map(|gap| gap.offset).chain([self.end]);
        starts.zip(ends).collect::<Vec<_>>().into_iter().filter(|(from, to)| from < to)
    }

    /// Drops the oldest bytes until `bytes` more fit, or all of them.
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

    /// Counts `bytes` that were appended. What does not fit is dropped.
    pub(crate) fn extend(&mut self, bytes: u64) {
        self.end += bytes;
        self.make_room(0);
    }

    /// Moves the end to `offset`, which is not before it: what lies between is a gap.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        let gap = Gap { offset: self.end, length: offset - self.end };
        self.end = offset;
        if self.start == gap.offset {
            // No byte is kept before it.
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

    /// Drops the first gap with all bytes before it.
    fn forget_first_gap(&mut self) {
        if let Some(gap) = self.gaps.pop_front() {
            self.start = gap.end();
            self.forgotten += gap.length;
        }
    }
}
