//! Puts complete code into the working directory. Files that no delivery brought stay there, such as a script's
//! checkpoints. A file of the code that the script has changed stays too, unless the new code changes it.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use placed_code::{Delivered, PlacedCode, has_content};
use protocol::code::{CodeFile, Manifest};

use super::set_mode;

/// Maximum number of files that are named. Further files are counted.
const NAMED_MAX: usize = 20;

/// The change from the earlier code to the new one.
pub(super) struct CodeChange<'a> {
    work_dir: &'a Path,
    new: &'a Manifest,
    earlier: Option<&'a PlacedCode>,
    delivered: Delivered<'a>,
    /// The files that only the earlier code has and that nobody has changed.
    going: BTreeSet<&'a str>,
    /// Sentences about files that both the script and the new code have changed.
    said: Vec<String>,
}

/// What happens to a path of the new code.
enum Fate {
    /// The file already has the new content.
    Ready,
    /// The script has changed the file, and the new code has not.
    Kept,
    /// The new file goes here. Nobody else has changed this path.
    Written,
    /// The new file replaces a file of the script.
    Replaced,
}

impl<'a> CodeChange<'a> {
    /// Reads the files that only the earlier code has.
    pub(super) fn new(work_dir: &'a Path, new: &'a Manifest, earlier: Option<&'a PlacedCode>) -> Self {
        let delivered = earlier.map(PlacedCode::delivered).unwrap_or_default();
        let paths: BTreeSet<&str> = new.files().iter().map(|file| file.path.as_str()).collect();
        let (mut going, mut said) = (BTreeSet::new(), vec![]);
        for path in delivered.paths().filter(|path| !paths.contains(path)) {
            let is_own = fs::symlink_metadata(work_dir.join(path)).is_ok_and(|found| !found.is_dir());
            if is_own && !delivered.has(work_dir, path) {
                said.push(format!("kept {path}, which the new code no longer has: the script had changed it"));
            } else {
                going.insert(path);
            }
        }
        Self { work_dir, new, earlier, delivered, going, said }
    }

    /// A path of the new code that is blocked: there is a folder in place of a file, or a file or link in place of a
    /// folder. A link to a folder is not used as a folder, because it may lead out of the working directory.
    pub(super) fn obstacle(&self) -> Option<PathBuf> {
        let mut folders = BTreeSet::new();
        for file in self.new.files() {
            let path = file.path.as_str();
            folders.extend(folders_of(path));
            if self.is_folder(path) && !self.will_vanish(path) {
                return Some(self.work_dir.join(path));
            }
        }
        let folders = folders.into_iter().filter(|folder| !self.going.contains(folder));
        let mut taken = folders.filter(|folder| !self.is_folder(folder)).map(|folder| self.work_dir.join(folder));
        taken.find(|path| fs::symlink_metadata(path).is_ok())
    }

    /// Whether this folder will be empty after [`CodeChange::apply`] has removed the files that only the earlier code has.
    fn will_vanish(&self, folder: &str) -> bool {
        let prefix = format!("{folder}/");
        let is_ours = self.going.range(prefix.as_str()..).next().is_some_and(|gone| gone.starts_with(&prefix));
        let goes = |entry: io::Result<DirEntry>| {
            let Ok(name) = entry.map(|entry| entry.file_name()) else { return false };
            let path = format!("{prefix}{}", name.to_string_lossy());
            if self.is_folder(&path) { self.will_vanish(&path) } else { self.going.contains(path.as_str()) }
        };
        is_ours && fs::read_dir(self.work_dir.join(folder)).is_ok_and(|mut entries| entries.all(goes))
    }

    /// Whether the path is a folder, and not a link to a folder.
    fn is_folder(&self, path: &str) -> bool {
        fs::symlink_metadata(self.work_dir.join(path)).is_ok_and(|found| found.is_dir())
    }

    /// Removes the files that only the earlier code has, and moves the staged files to their places. Returns sentences
    /// about files that both the script and the new code have changed.
    pub(super) fn apply(mut self, staged: &Path) -> io::Result<Vec<String>> {
        for gone in self.going.iter().filter(|gone| folders_of(gone).all(|folder| self.is_folder(folder))) {
            remove(&self.work_dir.join(gone))?;
            self.remove_empty_folders(gone);
        }
        for (index, file) in self.new.files().iter().enumerate() {
            let target = self.work_dir.join(file.path.as_str());
            match self.fate(file, &target) {
                Fate::Ready => set_mode(&target, file)?,
                Fate::Kept => {}
                Fate::Written => move_to(&staged.join(index.to_string()), &target)?,
                Fate::Replaced => {
                    // Without complete earlier code, a file of the image or of a volume looks like a file of the script.
                    let is_known = self.earlier.is_some_and(|earlier| earlier.code.is_some());
                    let changed = if is_known { "had changed" } else { "may have changed" };
                    self.said.push(format!("the new code replaces {}, which the script {changed}", file.path));
                    move_to(&staged.join(index.to_string()), &target)?;
                }
            }
        }
        fs::remove_dir_all(staged)?;
        Ok(shortened(self.said))
    }

    fn fate(&self, new: &CodeFile, target: &Path) -> Fate {
        if has_content(target, new.sha256, new.size) {
            return Fate::Ready;
        }
        let Some(earlier) = self.earlier else { return Fate::Written };
        if fs::symlink_metadata(target).is_err() || self.delivered.has(self.work_dir, new.path.as_str()) {
            return Fate::Written;
        }
        let before = earlier.code.as_ref().and_then(|code| code.file(&new.path));
        let is_unchanged = before.is_some_and(|before| before.sha256 == new.sha256);
        if is_unchanged { Fate::Kept } else { Fate::Replaced }
    }

    fn remove_empty_folders(&self, path: &str) {
        for folder in folders_of(path).rev() {
            // A folder that is not empty stays, like the folders above it.
            if fs::remove_dir(self.work_dir.join(folder)).is_err() {
                return;
            }
        }
    }
}

/// Moves a new file to its place.
fn move_to(new: &Path, target: &Path) -> io::Result<()> {
    target.parent().map_or(Ok(()), fs::create_dir_all)?;
    make_newer(new, target)?;
    fs::rename(new, target)
}

/// The first sentences, and the number of the others.
fn shortened(mut said: Vec<String>) -> Vec<String> {
    let further = said.len().saturating_sub(NAMED_MAX);
    said.truncate(NAMED_MAX);
    if further > 0 {
        said.push(format!("{further} more files were changed both by the script and by the new code"));
    }
    said
}

/// Gives a new file a later modification time than the old file, if there is an old file. Python compares these times
/// in whole seconds. If both files have the same time and size, Python runs the compiled form of the old file.
fn make_newer(new: &Path, old: &Path) -> io::Result<()> {
    let Ok(old) = fs::symlink_metadata(old) else { return Ok(()) };
    if fs::metadata(new)?.mtime() > old.mtime() {
        return Ok(());
    }
    let later = old.modified()?.checked_add(Duration::from_secs(1));
    later.map_or(Ok(()), |later| File::open(new)?.set_modified(later))
}

/// The folders of a path, outermost first.
fn folders_of(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// Removes a file. Does nothing if the script has removed the file or replaced it by a folder.
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
