//! An agent's output with the age of each part: for each part, its age and its length, then its bytes. Ages do not
//! depend on the time of day of the agent's machine. [`AgedReader`] reads this format and does no I/O.

use std::time::Duration;

use crate::taken;

/// Length of a part's head in bytes: the age in milliseconds as a number of eight bytes, and the length as a number of
/// four bytes. Both numbers are big-endian.
const HEAD_BYTES: usize = 12;

/// Bytes that were printed at about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgedPart<'a> {
    /// The time from the printing of the bytes to the sending of this part.
    pub age: Duration,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl AgedPart<'_> {
    /// The part with its head.
    ///
    /// # Panics
    /// If the part has 4 GiB or more.
    pub fn to_bytes(self) -> Vec<u8> {
        let age = u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX);
        let length = u32::try_from(self.bytes.len()).expect("a part is a small piece of output");
        [&age.to_be_bytes(), length.to_be_bytes().as_slice(), self.bytes].concat()
    }
}

/// Reads output with ages. Every sequence of bytes is valid. The stream may end anywhere.
#[derive(Debug)]
pub struct AgedReader(At);

/// The place in the stream.
#[derive(Debug)]
enum At {
    /// In the head of a part. Contains the bytes of the head that have arrived.
    Head(Vec<u8>),
    /// In the bytes of a part. `left` bytes have not arrived.
    Bytes { age: Duration, left: usize },
}

impl Default for AgedReader {
    fn default() -> Self {
        Self(At::Head(Vec::new()))
    }
}

impl AgedReader {
    /// Takes the next part, or the beginning or rest of a part, from the beginning of `input`, and shortens `input`.
    /// Returns `None` if more input is needed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<AgedPart<'a>> {
        loop {
            match &mut self.0 {
                At::Head(head) => {
                    head.extend_from_slice(taken(input, HEAD_BYTES - head.len()));
                    let (age, length) = head.split_first_chunk()?;
                    let length = length.try_into().ok()?;
                    let age = Duration::from_millis(u64::from_be_bytes(*age));
                    self.0 = At::Bytes { age, left: u32::from_be_bytes(length) as usize };
                }
                At::Bytes { left: 0, .. } => self.0 = At::Head(Vec::new()),
                At::Bytes { .. } if input.is_empty() => return None,
                At::Bytes { age, left } => {
                    let bytes = taken(input, *left);
                    *left -= bytes.len();
                    return Some(AgedPart { age: *age, bytes });
                }
            }
        }
    }
}
