//! The first bytes of a log's file: what makes it a log, and which offsets it holds.

/// Length of the header; the stream's bytes follow it.
pub(crate) const HEADER_BYTES: u64 = 32;

/// The first eight bytes; the last of them is the format's version.
const MAGIC: [u8; 8] = *b"MUSTLOG\x01";

/// What is said of the log: four little-endian numbers of eight bytes, the magic first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) capacity: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Header {
    /// The header's bytes. They are written by one call, so that a killed writer leaves the old ones or these.
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES as usize] {
        let Self { capacity, start, end } = self;
        let mut bytes = [0; HEADER_BYTES as usize];
        for (field, value) in
            bytes.chunks_exact_mut(8).zip([MAGIC, capacity.to_le_bytes(), start.to_le_bytes(), end.to_le_bytes()])
        {
            field.copy_from_slice(&value);
        }
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// What does not fit, as the rest of a sentence.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES as usize]) -> Result<Self, &'static str> {
        let [magic, capacity, start, end] = [0, 8, 16, 24].map(|at| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            field
        });
        if magic != MAGIC {
            return Err("it does not begin as a log does");
        }
        let [capacity, start, end] = [capacity, start, end].map(u64::from_le_bytes);
        // Beyond this, sums of offsets could overflow; no stream comes near.
        if capacity == 0 || capacity > u64::MAX / 4 || end > u64::MAX / 4 {
            return Err("its header holds impossible numbers");
        }
        if start > end || end - start > capacity {
            return Err("its header contradicts itself");
        }
        Ok(Self { capacity, start, end })
    }

    /// How long the file must be to hold every byte that the header promises.
    pub(crate) fn least_file_length(self) -> u64 {
        let Self { capacity, start, end } = self;
        let kept = end - start;
        let place = start % capacity;
        HEADER_BYTES + if kept == 0 { 0 } else { (place + kept).min(capacity) }
    }
}
