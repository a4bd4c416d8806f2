//! Reads and hashes files, several at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use protocol::code::{CODE_BYTES_MAX, CodeFile, CodePath, Sha256};

use super::PackError;
use super::walk::Found;

/// Maximum files that are read at a time.
const THREADS_MAX: usize = 8;

/// The contents of files by their hash. Files with the same content share an entry.
pub(super) type Contents = BTreeMap<Sha256, Vec<u8>>;

type Content = (CodeFile, Vec<u8>);

/// Reads all files. The sizes and hashes are those of the bytes that were read.
pub(super) fn all(found: &[Found]) -> Result<(Vec<CodeFile>, Contents), PackError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let share = || {
        let turns = std::iter::from_fn(|| found.get(next.fetch_add(1, Ordering::Relaxed)));
        turns.map(|file| one(file, &bytes)).collect::<Result<Vec<Content>, PackError>>()
    };
    let shares = thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        let joined = readers.into_iter().map(|reader| reader.join().expect("reading files does not panic"));
        joined.collect::<Result<Vec<_>, PackError>>()
    })?;
    let (mut files, mut contents) = (Vec::with_capacity(found.len()), Contents::new());
    for (file, content) in shares.into_iter().flatten() {
        contents.insert(file.sha256, content);
        files.push(file);
    }
    Ok((files, contents))
}

/// Reads a file. `total` is the number of bytes that were read from all files so far.
fn one(found: &Found, total: &AtomicU64) -> Result<Content, PackError> {
    let Found { path, real, size: _, executable } = found;
    let path = code_path(path, real)?;
    let failed = |source| PackError::Read { path: real.clone(), source };
    let mut content = Vec::new();
    let file = File::open(real).map_err(failed)?;
    file.take(CODE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    let size = content.len() as u64;
    if total.fetch_add(size, Ordering::Relaxed) + size > CODE_BYTES_MAX {
        return Err(PackError::Grew(real.clone()));
    }
    let file = CodeFile { path, sha256: Sha256::of(&content), size, executable: *executable };
    Ok((file, content))
}

fn code_path(path: &Path, real: &Path) -> Result<CodePath, PackError> {
    let folder = || real.parent().map(Path::to_owned).unwrap_or_default();
    let Some(text) = path.to_str() else {
        return Err(PackError::NotUnicode { folder: folder(), name: format!("{path:?}") });
    };
    text.parse().map_err(|wrong| PackError::Name { folder: folder(), wrong })
}
