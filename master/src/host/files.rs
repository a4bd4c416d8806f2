//! Files and folders that may be absent.

use std::fs;
use std::io;
use std::path::Path;

/// The outcome of work on a file or folder; `None` if it is absent.
pub(crate) fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
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
