//! Logs in real files: damaged files, gaps, full disks and large streams.

use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use bounded_log::{BoundedLog, Gap, OpenError};
use rustix::process::{Resource, Rlimit, setrlimit};

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
        other => panic!("not refused as damaged: {other:?}"),
    }
}

/// A header with these numbers: capacity, start, end, forgotten, and the gaps.
fn header(fixed: [u64; 4], gaps: &[[u64; 2]]) -> Vec<u8> {
    let numbers: Vec<u64> = fixed.into_iter().chain([gaps.len() as u64]).chain(gaps.as_flattened().to_vec()).collect();
    [b"MUSTLOG\x02".to_vec(), numbers.into_iter().flat_map(u64::to_le_bytes).collect()].concat()
}

fn all(log: &BoundedLog) -> Vec<(u64, String)> {
    let mut pieces = vec![];
    let mut offset = 0;
    loop {
        let mut buffer = [0; 100];
        let (from, n) = log.read(offset, &mut buffer).unwrap();
        if n == 0 {
            return pieces;
        }
        pieces.push((from, String::from_utf8_lossy(&buffer[..n]).into_owned()));
        offset = from + n as u64;
    }
}

#[test]
fn a_damaged_log_or_another_file_is_refused_with_a_reason() {
    assert_eq!(refusal(b"hello"), "it is shorter than its header");
    assert_eq!(refusal(&[b'x'; 64]), "it is not a log, or is a log of another version");
    let older = [b"MUSTLOG\x01".as_slice(), &[0; 24]].concat();
    assert_eq!(refusal(&older), "it is not a log, or is a log of another version");
    assert_eq!(refusal(&header([0; 4], &[])), "its header holds impossible numbers");
    assert_eq!(refusal(&header([100, 0, u64::MAX, 0], &[])), "its header holds impossible numbers");
    for (fixed, gaps) in [
        ([100, 5, 4, 0], vec![]),
        ([100, 0, 101, 0], vec![]),
        ([100, 5, 9, 6], vec![]),
        ([100, 0, 101, 0], vec![[50, 0]]),
        ([100, 50, 60, 0], vec![[50, 5]]),
        ([100, 0, 60, 0], vec![[50, 11]]),
        ([100, 0, 60, 0], vec![[50, u64::MAX]]),
        ([100, 0, 60, 0], vec![[40, 10], [50, 5]]),
    ] {
        assert_eq!(refusal(&header(fixed, &gaps)), "its header contradicts itself", "{fixed:?} {gaps:?}");
    }
    assert_eq!(refusal(&header([100, 0, 50, 0], &[])), "it is shorter than its header says");
    assert_eq!(refusal(&header([100, 0, 60, 0], &[[50, 10]])), "it is shorter than its header says");
    assert_eq!(refusal(&header([100, 0, 60, 0], &[[50, 10]])[..60]), "it is shorter than its header");
}

#[test]
fn reopening_a_log_keeps_a_gap_and_the_bytes_before_it() {
    let folder = folder();
    let mut log = BoundedLog::open(&folder.path, CAPACITY).unwrap();
    log.append_at(0, b"before\n").unwrap();
    log.append_at(1_000_007, b"after\n").unwrap();
    log.append_at(1_000_009, b"ter\nlast\n").unwrap();
    drop(log);

    let log = BoundedLog::open(&folder.path, CAPACITY).unwrap();
    assert_eq!(all(&log), [(0, "before\n".to_owned()), (1_000_007, "after\nlast\n".to_owned())]);
    assert_eq!(log.gaps().collect::<Vec<_>>(), [Gap { offset: 7, length: 1_000_000 }]);
    assert_eq!((log.start(), log.end()), (0, 1_000_018));
    assert_eq!(log.tail_offset(3).unwrap(), 0);
}

#[test]
fn two_successive_gaps_at_the_end_are_one_gap() {
    let mut log = BoundedLog::create_anonymous(&std::env::temp_dir(), CAPACITY).unwrap();
    log.append(b"kept").unwrap();
    log.skip_to(10).unwrap();
    log.skip_to(20).unwrap();
    assert_eq!(log.gaps().collect::<Vec<_>>(), [Gap { offset: 4, length: 16 }]);
    assert_eq!(log.read(4, &mut [0; 10]).unwrap(), (20, 0));
}

#[test]
fn a_log_with_more_than_250_gaps_drops_the_oldest_gaps() {
    let folder = folder();
    let mut log = BoundedLog::open(&folder.path, NonZeroU64::new(1000).unwrap()).unwrap();
    for piece in 0..300 {
        log.append_at(10 * piece, b"x").unwrap();
    }
    drop(log);
    let log = BoundedLog::open(&folder.path, CAPACITY).unwrap();
    assert_eq!((log.start(), log.gaps().count(), all(&log).len()), (490, 250, 251));
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
    after[..48].copy_from_slice(&before[..48]);
    fs::write(&folder.path, after).unwrap();

    let mut log = BoundedLog::open(&folder.path, CAPACITY).unwrap();
    log.append(b"next").unwrap();
    let mut buffer = [0; 100];
    let (from, n) = log.read(0, &mut buffer).unwrap();
    assert_eq!((from, &buffer[..n]), (0, b"whole\nnext".as_slice()));
}

#[test]
fn opening_a_log_in_a_missing_folder_fails_and_the_error_names_the_file() {
    let error = BoundedLog::open("/nowhere/log".as_ref(), CAPACITY).unwrap_err();
    assert_eq!(error.to_string(), "open the log \"/nowhere/log\"");
}

#[test]
fn the_last_lines_are_found_even_if_a_line_is_longer_than_a_search_step() {
    let mut log = BoundedLog::create_anonymous(&std::env::temp_dir(), NonZeroU64::new(1 << 20).unwrap()).unwrap();
    let long_line = [vec![b'x'; 200_000], vec![b'\n']].concat();
    for _ in 0..20 {
        log.append(&long_line).unwrap();
    }
    assert_eq!(log.tail_offset(2).unwrap(), 18 * 200_001);
    assert_eq!(log.tail_offset(1000).unwrap(), log.start());
}

/// Runs an ignored test of this program in a new process. The process ignores SIGXFSZ. So a write beyond the limit on
/// file sizes fails and does not end the process.
fn run_with_limited_files(test: &str) {
    let script = r#"trap '' XFSZ; exec "$0" --exact --ignored "$1" "#;
    let status = Command::new("sh").args(["-c", script]).arg(std::env::current_exe().unwrap()).arg(test).status();
    assert!(status.unwrap().success());
}

/// Whether a file is in a file system in memory. A log reserves no space there.
fn is_in_memory(path: &Path) -> bool {
    let stat = Command::new("stat").args(["--file-system", "--format", "%T"]).arg(path).output().unwrap();
    stat.stdout == b"tmpfs\n"
}

/// From now on, no file of this process can become longer than `bytes`.
fn limit_files(bytes: u64) {
    setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), maximum: Some(bytes) }).unwrap();
}

#[test]
fn when_files_cannot_grow_a_named_log_stays_unchanged_and_an_anonymous_log_drops_its_oldest_bytes() {
    run_with_limited_files("files::in_a_process_with_limited_files_only_an_anonymous_log_drops_its_oldest_bytes");
}

#[test]
#[ignore = "run by when_files_cannot_grow_a_named_log_stays_unchanged_and_an_anonymous_log_drops_its_oldest_bytes"]
fn in_a_process_with_limited_files_only_an_anonymous_log_drops_its_oldest_bytes() {
    let folder = folder();
    limit_files(4096 + 100_000);
    let mut named = BoundedLog::open(&folder.path, NonZeroU64::new(1 << 20).unwrap()).unwrap();
    named.append(&[b'x'; 99_000]).unwrap();
    let error = named.append(&[b'y'; 2000]).unwrap_err();
    assert_eq!(
        (error.kind(), named.start(), named.end()),
        (ErrorKind::FileTooLarge, 0, 99_000),
        "the failed append has changed the log, or failed with another error"
    );

    let mut log = BoundedLog::create_anonymous(&std::env::temp_dir(), NonZeroU64::new(1 << 20).unwrap()).unwrap();
    for line in 0..20_000 {
        log.append(format!("line {line:06}\n").as_bytes()).unwrap();
    }
    assert_eq!((log.start(), log.end()), (12 * 20_000 - 99_996, 12 * 20_000));
    let mut kept = vec![0; 200_000];
    let (from, n) = log.read(0, &mut kept).unwrap();
    let lines = (11_667..20_000).map(|line| format!("line {line:06}\n")).collect::<String>();
    assert_eq!((from, String::from_utf8_lossy(&kept[..n])), (12 * 11_667, lines.into()));
}

#[test]
fn reserved_space_is_allocated_at_once_except_in_a_file_system_in_memory() {
    let folder = folder();
    let log = BoundedLog::open(&folder.path, NonZeroU64::new(1 << 20).unwrap()).unwrap();
    let allocated = || fs::metadata(&folder.path).unwrap().blocks() * 512;
    let header = allocated();
    match log.reserve(1 << 30) {
        Ok(()) => {
            let taken = allocated() - header;
            let expected = if is_in_memory(&folder.path) { 0..1 } else { 1 << 20..2 << 20 };
            assert!(expected.contains(&taken), "{taken} bytes are allocated, expected {expected:?}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
    }
}
