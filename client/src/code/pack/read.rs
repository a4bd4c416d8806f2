//! Reads and hashes files, several at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use protocol::code::{BadCodePath, CODE_BYTES_MAX, CodeFile, CodePath, Sha256};

use super::walk::Found;
use super::{LEAVE_OUT, unreadable, wrong_files};
use crate::ending::error::Error;
use crate::output::size;

/// Maximum files that are read at a time.
const THREADS_MAX: usize = 8;

/// The contents of files by their hash. Files with the same content share an entry.
pub(super) type Contents = BTreeMap<Sha256, Vec<u8>>;

type Content = (CodeFile, Vec<u8>);

/// Reads all files. The sizes and hashes describe the bytes that were read.
pub(super) fn all(found: &[Found]) -> Result<(Vec<CodeFile>, Contents), Error> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let share = || {
        let turns = std::iter::from_fn(|| found.get(next.fetch_add(1, Ordering::Relaxed)));
        turns.map(|file| one(file, &bytes)).collect::<Result<Vec<Content>, Error>>()
    };
    let shares = thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        let joined = readers.into_iter().map(|reader| reader.join().expect("reading files does not panic"));
        joined.collect::<Result<Vec<_>, Error>>()
    })?;
    let (mut files, mut contents) = (Vec::with_capacity(found.len()), Contents::new());
    for (file, content) in shares.into_iter().flatten() {
        contents.insert(file.sha256, content);
        files.push(file);
    }
    Ok((files, contents))
}

/// Reads a file. `total` is the number of bytes that were read from all files so far.
fn one(found: &Found, total: &AtomicU64) -> Result<Content, Error> {
    let Found { path, real, size: _, executable } = found;
    let path = code_path(path, real)?;
    let mut content = Vec::new();
    let file = File::open(real).map_err(unreadable(real))?;
    file.take(CODE_BYTES_MAX + 1).read_to_end(&mut content).map_err(unreadable(real))?;
    let bytes = content.len() as u64;
    if total.fetch_add(bytes, Ordering::Relaxed) + bytes > CODE_BYTES_MAX {
        let (limit, last) = (size(CODE_BYTES_MAX), real.display());
        let sentence = format!("the job's files grew beyond {limit} while they were read (last file: {last})");
        return Err(wrong_files(sentence).hint(LEAVE_OUT));
    }
    let file = CodeFile { path, sha256: Sha256::of(&content), size: bytes, executable: *executable };
    Ok((file, content))
}

fn code_path(path: &Path, real: &Path) -> Result<CodePath, Error> {
    let wrong = |wrong: String| {
        let folder = real.parent().unwrap_or(Path::new("")).display();
        wrong_files(format!("a file in {folder} cannot be sent: {wrong}"))
            .hint("rename the file, or exclude it with a pattern in .musterignore")
    };
    let text = path.to_str().ok_or_else(|| wrong(format!("{path:?} is not valid UTF-8")))?;
    text.parse().map_err(|error: BadCodePath| wrong(error.to_string()))
}
