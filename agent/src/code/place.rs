//! Puts complete code into the working directory. Files that no delivery brought stay there: a script keeps its
//! checkpoints.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use protocol::code::Manifest;

use super::{has_content, set_mode};

/// The change from the earlier code to the new one.
pub(super) struct Change<'a> {
    work_dir: &'a Path,
    new: &'a Manifest,
    /// The files that only the earlier code has.
    going: BTreeSet<&'a str>,
}

impl<'a> Change<'a> {
    pub(super) fn new(work_dir: &'a Path, new: &'a Manifest, earlier: Option<&'a Manifest>) -> Self {
        let paths = |manifest: &'a Manifest| manifest.files().iter().map(|file| file.path.as_str());
        let mut going: BTreeSet<&str> = earlier.into_iter().flat_map(paths).collect();
        for path in paths(new) {
            going.remove(path);
        }
        Self { work_dir, new, going }
    }

    /// Something that takes the place of a file or of its folder, and that no delivery brought. A link to a folder is not
    /// followed: it may lead out of the working directory.
    pub(super) fn obstacle(&self) -> Option<PathBuf> {
        let mut folders = BTreeSet::new();
        for file in self.new.files() {
            let path = file.path.as_str();
            folders.extend(folders_of(path));
            let is_emptied = || self.going.range(path..).any(|gone| Path::new(gone).starts_with(path));
            if self.is_folder(path) && !is_emptied() {
                return Some(self.work_dir.join(path));
            }
        }
        let folders = folders.into_iter().filter(|folder| !self.going.contains(folder));
        let mut taken = folders.filter(|folder| !self.is_folder(folder)).map(|folder| self.work_dir.join(folder));
        taken.find(|path| fs::symlink_metadata(path).is_ok())
    }

    /// Whether it is a folder, and no link to one.
    fn is_folder(&self, path: &str) -> bool {
        fs::symlink_metadata(self.work_dir.join(path)).is_ok_and(|found| found.is_dir())
    }

    /// Removes the files that only the earlier code has, and moves the staged files to their places. A file that has the
    /// right content stays. All others have a new time of change: Python ignores a changed source whose time and size are
    /// those of its compiled form.
    pub(super) fn apply(self, staged: &Path) -> io::Result<()> {
        for gone in self.going.iter().filter(|gone| folders_of(gone).all(|folder| self.is_folder(folder))) {
            remove(&self.work_dir.join(gone))?;
            self.remove_empty_folders(gone);
        }
        for (index, file) in self.new.files().iter().enumerate() {
            let target = self.work_dir.join(file.path.as_str());
            if has_content(&target, file)? {
                set_mode(&target, file)?;
                continue;
            }
            target.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::rename(staged.join(index.to_string()), target)?;
        }
        fs::remove_dir_all(staged)
    }

    fn remove_empty_folders(&self, path: &str) {
        for folder in folders_of(path).rev() {
            // A folder that is not empty stays, and so do the folders above it.
            if fs::remove_dir(self.work_dir.join(folder)).is_err() {
                return;
            }
        }
    }
}

/// The folders of a path, outermost first.
fn folders_of(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// Removes a file. If the script has removed it, or has made a folder of it, nothing is left to do.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error)
            if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory) =>
        {
            Err(error)
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
