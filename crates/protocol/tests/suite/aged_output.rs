//! Tests of the format of output with ages.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use protocol::aged_output::{AgedPart, AgedReader};

/// The bytes with their ages in milliseconds, from a stream that arrives in these pieces.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<(u64, u8)> {
    let mut reader = AgedReader::default();
    let mut read = vec![];
    for mut piece in pieces {
        while let Some(AgedPart { age, bytes }) = reader.next(&mut piece) {
            read.extend(bytes.iter().map(|byte| (age.as_millis() as u64, *byte)));
        }
        assert_eq!(piece, b"", "the reader has left input");
    }
    read
}

fn stream(parts: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let part = |(age, bytes): &(u64, Vec<u8>)| AgedPart { age: Duration::from_millis(*age), bytes }.to_bytes();
    parts.iter().flat_map(part).collect()
}

#[test]
fn a_part_is_its_age_its_length_and_its_bytes() {
    let part = AgedPart { age: Duration::from_millis(0x1_0203), bytes: b"line\n" };
    assert_eq!(part.to_bytes(), b"\0\0\0\0\0\x01\x02\x03\0\0\0\x05line\n");
}

proptest! {
    #[test]
    fn parts_arrive_whole_however_the_stream_is_cut(
        parts in vec((any::<u64>(), vec(any::<u8>(), 0..20)), 0..6),
        piece in 1_usize..40,
    ) {
        let expected: Vec<_> = parts.iter().flat_map(|(age, bytes)| bytes.iter().map(|byte| (*age, *byte))).collect();
        prop_assert_eq!(read(stream(&parts).chunks(piece)), expected);
    }

    #[test]
    fn the_reader_takes_all_bytes_of_any_stream(stream in vec(any::<u8>(), 0..200), piece in 1_usize..40) {
        read(stream.chunks(piece));
    }
}
