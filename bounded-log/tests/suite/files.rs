//! What a log makes of the file it finds, and of large streams.

use std::fs;
use std::num::NonZeroU64;
use std::path::PathBuf;

use bounded_log::{BoundedLog, OpenError};

const CAPACITY: NonZeroU64 = NonZeroU64::new(100).unwrap();

struct Folder {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn folder() -> Folder {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    Folder { _dir: dir, path }
}

fn refusal(content: &[u8]) -> String {
    let folder = folder();
    fs::write(&folder.path, content).unwrap();
    match BoundedLog::open(&folder.path, CAPACITY) {
        Err(OpenError::Corrupt { reason, .. }) => reason.to_owned(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn header(capacity: u64, start: u64, end: u64) -> Vec<u8> {
    let numbers = [capacity, start, end].map(u64::to_le_bytes).concat();
    [b"MUSTLOG\x01".as_slice(), &numbers].concat()
}

#[test]
fn a_file_that_is_no_log_is_refused_with_its_reason() {
    assert_eq!(refusal(b"hello"), "it is shorter than its header");
    assert_eq!(refusal(&[b'x'; 64]), "it does not begin as a log does");
    assert_eq!(refusal(&header(0, 0, 0)), "its header holds impossible numbers");
    assert_eq!(refusal(&header(100, 5, 4)), "its header contradicts itself");
    assert_eq!(refusal(&header(100, 0, 101)), "its header contradicts itself");
    assert_eq!(refusal(&header(100, 0, 50)), "it is shorter than its header says");
}

#[test]
fn an_empty_file_becomes_a_log() {
    let folder = folder();
    fs::write(&folder.path, b"").unwrap();
    assert_eq!(BoundedLog::open(&folder.path, CAPACITY).unwrap().end(), 0);
}

#[test]
fn a_log_whose_writer_was_killed_between_data_and_header_ends_where_the_header_says() {
    let folder = folder();
    BoundedLog::open(&folder.path, CAPACITY).unwrap().append(b"whole\n").unwrap();
    let before = fs::read(&folder.path).unwrap();
    BoundedLog::open(&folder.path, CAPACITY).unwrap().append(b"half").unwrap();
    let mut after = fs::read(&folder.path).unwrap();
    after[..32].copy_from_slice(&before[..32]);
    fs::write(&folder.path, after).unwrap();

    let mut log = BoundedLog::open(&folder.path, CAPACITY).unwrap();
    log.append(b"next").unwrap();
    let mut buffer = [0; 100];
    let (from, n) = log.read(0, &mut buffer).unwrap();
    assert_eq!((from, &buffer[..n]), (0, b"whole\nnext".as_slice()));
}

#[test]
fn a_folder_that_does_not_exist_is_an_io_error_that_names_the_file() {
    let error = BoundedLog::open("/nowhere/log".as_ref(), CAPACITY).unwrap_err();
    assert_eq!(error.to_string(), "open the log \"/nowhere/log\"");
}

#[test]
fn the_tail_is_found_across_scan_blocks() {
    let mut log = BoundedLog::create_anonymous(&std::env::temp_dir(), NonZeroU64::new(1 << 20).unwrap()).unwrap();
    let long_line = [vec![b'x'; 200_000], vec![b'\n']].concat();
    for _ in 0..20 {
        log.append(&long_line).unwrap();
    }
    assert_eq!(log.tail_offset(2).unwrap(), 18 * 200_001);
    assert_eq!(log.tail_offset(1000).unwrap(), log.start());
}
