//! The header of a log's file. It shows that the file is a log, and which bytes of the stream the log keeps.

use std::collections::VecDeque;

use crate::Gap;
use crate::extent::{Extent, GAPS_MAX};

/// Where the stream's bytes begin in the file. The longest header fits before this place.
pub(crate) const DATA_BEGIN: u64 = 4096;

/// How many numbers of the header come before the first gap.
const FIXED: usize = 6;

/// Length of a number in bytes.
const NUMBER_BYTES: usize = 8;

/// Length of a header without gaps.
pub(crate) const LEAST_BYTES: usize = FIXED * NUMBER_BYTES;

/// The first eight bytes of the file. The eighth byte is the version of the format.
const MAGIC: u64 = u64::from_le_bytes(*b"MUSTLOG\x02");

/// Maximum capacity and maximum end offset in a header, so that sums of numbers do not overflow. No stream becomes that
/// long.
const NUMBER_MAX: u64 = u64::MAX / 4;

const _: () = assert!(LEAST_BYTES + GAPS_MAX * 2 * NUMBER_BYTES <= DATA_BEGIN as usize);

/// The header as bytes: little-endian numbers of eight bytes. Write them with one call, so that a killed writer leaves
/// either the old header or the new one.
pub(crate) fn encode(extent: &Extent) -> Vec<u8> {
    let Extent { capacity, start, end, forgotten, gaps } = extent;
    let fixed = [MAGIC, *capacity, *start, *end, *forgotten, gaps.len() as u64];
    let gaps = gaps.iter().flat_map(|gap| [gap.offset, gap.length]);
    fixed.into_iter().chain(gaps).flat_map(u64::to_le_bytes).collect()
}

/// Reads a header from a file's first [`DATA_BEGIN`] bytes, or from all bytes of a shorter file.
///
/// # Errors
/// The reason why the header is not valid, as the end of a sentence.
pub(crate) fn decode(bytes: &[u8]) -> Result<Extent, &'static str> {
    let (numbers, _rest) = bytes.as_chunks::<NUMBER_BYTES>();
    let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
    let mut next = || numbers.next().ok_or("it is shorter than its header");
    if next()? != MAGIC {
        return Err("it is not a log, or is a log of another version");
    }
    let (capacity, start, end, forgotten, count) = (next()?, next()?, next()?, next()?, next()?);
    if capacity == 0 || [capacity, end].iter().any(|number| *number > NUMBER_MAX) || count > GAPS_MAX as u64 {
        return Err("its header holds impossible numbers");
    }
    let gaps: VecDeque<Gap> =
        (0..count).map(|_| Ok(Gap { offset: next()?, length: next()? })).collect::<Result<_, &'static str>>()?;
    let extent = Extent { capacity, start, end, forgotten, gaps };
    if is_consistent(&extent) { Ok(extent) } else { Err("its header contradicts itself") }
}

fn is_consistent(extent: &Extent) -> bool {
    let mut run_start = extent.start;
    for gap in &extent.gaps {
        // There are kept bytes directly before each gap, and no gap reaches beyond the log's end.
        if gap.offset <= run_start || gap.length == 0 || gap.length > extent.end.saturating_sub(gap.offset) {
            return false;
        }
        run_start = gap.end();
    }
    extent.forgotten <= extent.start && extent.start <= extent.end && extent.kept() <= extent.capacity
}

/// Minimum length of a file that contains all bytes that the header describes.
pub(crate) fn least_file_length(extent: &Extent) -> u64 {
    let kept = extent.kept();
    if kept == 0 {
        return LEAST_BYTES as u64;
    }
    DATA_BEGIN + (extent.place(extent.start) + kept).min(extent.capacity)
}
