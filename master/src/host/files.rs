//! Files and folders that may be absent, and that must outlive a power failure.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::io::Errno;

/// How many files are written to the disk at the same time. A file system writes them together.
const SYNCS_AT_ONCE: usize = 8;

/// The outcome of work on a file or folder; `None` if it is absent.
pub(crate) fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Turns the error of a removal into a success if there was nothing to remove.
pub(crate) fn unless_absent(removed: io::Result<()>) -> io::Result<()> {
    if_there(removed).map(drop)
}

/// The names of the files and folders in a folder, except names that are not UTF-8. Empty if there is no such folder.
pub(crate) fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = if_there(fs::read_dir(folder))?.into_iter().flatten().collect::<io::Result<Vec<_>>>()?;
    Ok(entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Whether the operating system had too little disk space or memory, or too few processes or open files.
pub(crate) fn lacks_room(error: &io::Error) -> bool {
    let is_full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::OutOfMemory].contains(&error.kind());
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    is_full || errno.is_some_and(|errno| [Errno::AGAIN, Errno::MFILE, Errno::NFILE].contains(&errno))
}

/// Writes the new file `unfinished`, and moves it to `path`. Returns when both are on the disk. So the file `path` never has
/// only a part of the content, even after a power failure.
pub(crate) fn put(content: &[u8], (mut file, unfinished): (File, &Path), path: &Path) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Returns when the renames in this folder are on the disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns when these files are on the disk.
pub(crate) fn sync(paths: &[PathBuf]) -> io::Result<()> {
    let each = |paths: &[PathBuf]| paths.iter().try_for_each(|path| File::open(path)?.sync_all());
    thread::scope(|scope| {
        let parts = paths.chunks(paths.len().div_ceil(SYNCS_AT_ONCE).max(1));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || each(part))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        };
        threads.into_iter().try_for_each(join)
    })
}
