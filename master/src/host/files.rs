//! Files and folders that may be absent.

use std::fs;
use std::io;
use std::path::Path;

/// Turns the error of a removal into a success if there was nothing to remove.
pub(crate) fn unless_absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// The names of the files and folders in a folder, except names that are not UTF-8. Empty if there is no such folder.
pub(crate) fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    Ok(entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
