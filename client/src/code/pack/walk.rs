//! Lists the files of a folder that no rule of `rules.rs` leaves out. Follows links to files and folders within the
//! folder. Leaves out sockets, devices and links whose target does not exist.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use protocol::code::{CODE_FILES_MAX, ScriptPath};

use super::rules::FolderRules;
use super::{LEAVE_OUT, NAME_FOLDER, unreadable, wrong_files};
use crate::ending::error::Error;

/// Maximum files and folders to look at. More would take too long.
const ENTRIES_MAX: usize = 200_000;
/// The mode bit of a file that its owner may execute.
const EXECUTABLE: u32 = 0o100;

/// A file to pack.
#[derive(Debug)]
pub(super) struct Found {
    /// The file's path in the job.
    pub(super) path: PathBuf,
    /// The file's path on this machine, without links.
    pub(super) real: PathBuf,
    /// The file's length in bytes when the folder was listed.
    pub(super) size: u64,
    pub(super) executable: bool,
}

/// The files of a folder when it was listed.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The path of the folder. No part of it is a link.
    pub(super) root: PathBuf,
    pub(super) files: Vec<Found>,
    /// The paths of all folders that were listed. No part of them is a link.
    pub(crate) folders: Vec<PathBuf>,
    /// The files and folders that a .gitignore leaves out, for users. The name of a folder ends in a slash.
    pub(super) left_out: Vec<String>,
    /// The newest modification time of the files.
    pub(crate) modified: Option<SystemTime>,
}

/// Which files of a folder are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope<'a> {
    /// All files that a job brings. A link out of the folder is refused.
    Job,
    /// This script and all Python source files. The job runs in this folder, so other files may be the job's output.
    /// A link out of the folder is left out.
    Sources(&'a ScriptPath),
}

struct FolderWalk<'a> {
    listing: &'a mut Listing,
    scope: Scope<'a>,
    rules: FolderRules,
    /// The current folder and the folders above it, without links.
    way: Vec<PathBuf>,
    seen: usize,
}

impl Listing {
    /// Lists a folder. Blocks.
    pub(crate) fn of(folder: &Path, scope: Scope<'_>) -> Result<Self, Error> {
        let root = folder.canonicalize().map_err(unreadable(folder))?;
        if !root.is_dir() {
            return Err(wrong_files(format!("{} is not a folder", root.display())).hint(NAME_FOLDER));
        }
        let rules = FolderRules::of(&root)?;
        let mut listing =
            Self { root: root.clone(), files: Vec::new(), folders: Vec::new(), left_out: Vec::new(), modified: None };
        let mut walk = FolderWalk { listing: &mut listing, scope, rules, way: Vec::new(), seen: 0 };
        walk.folder(&root, Path::new(""))?;
        listing.left_out.sort();
        Ok(listing)
    }
}

impl FolderWalk<'_> {
    fn folder(&mut self, real: &Path, path: &Path) -> Result<(), Error> {
        if self.way.iter().any(|above| above == real) {
            return Err(link_loop(&self.listing.root.join(path)));
        }
        self.way.push(real.to_owned());
        self.listing.folders.push(real.to_owned());
        self.rules.enter(real, path)?;
        for entry in fs::read_dir(real).map_err(unreadable(real))? {
            let entry = entry.map_err(unreadable(real))?;
            self.seen += 1;
            if self.seen > ENTRIES_MAX {
                let found = format!("{} has more than {ENTRIES_MAX} files and folders", self.listing.root.display());
                let sentence = format!("{found}; a job brings at most {CODE_FILES_MAX} files");
                return Err(wrong_files(sentence).hint(LEAVE_OUT));
            }
            self.entry(&entry.path(), &path.join(entry.file_name()))?;
        }
        self.rules.leave();
        self.way.pop();
        Ok(())
    }

    fn entry(&mut self, place: &Path, path: &Path) -> Result<(), Error> {
        let is_link = fs::symlink_metadata(place).is_ok_and(|found| found.is_symlink());
        let metadata = match fs::metadata(place) {
            Ok(metadata) => metadata,
            // The target of a link does not exist, or the file was removed after the folder was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if self.rules.leave_out(path, false) => return Ok(()),
            Err(error) if is_link => return Err(unusable_link(place, error)),
            Err(error) => return Err(unreadable(place)(error)),
        };
        let is_left_out = self.rules.leave_out(path, metadata.is_dir());
        if is_left_out && !(metadata.is_dir() && !is_link && self.rules.take_back()) {
            if self.rules.is_by_git(path) {
                let slash = if metadata.is_dir() { "/" } else { "" };
                self.listing.left_out.push(format!("{}{slash}", path.display()));
            }
            return Ok(());
        }
        let Some(real) = (if is_link { self.target(place)? } else { Some(place.to_owned()) }) else { return Ok(()) };
        if metadata.is_dir() {
            return self.folder(&real, path);
        }
        if metadata.is_file() && self.is_wanted(path) {
            self.listing.modified = self.listing.modified.max(metadata.modified().ok());
            let executable = metadata.permissions().mode() & EXECUTABLE != 0;
            self.listing.files.push(Found { path: path.to_owned(), real, size: metadata.len(), executable });
        }
        Ok(())
    }

    fn is_wanted(&self, path: &Path) -> bool {
        match self.scope {
            Scope::Job => true,
            Scope::Sources(script) => {
                path.extension().is_some_and(|extension| extension == "py") || path == Path::new(script.as_str())
            }
        }
    }

    /// The target of a link. If it is outside the folder: an error for [`Scope::Job`], `None` for [`Scope::Sources`].
    fn target(&self, link: &Path) -> Result<Option<PathBuf>, Error> {
        let target = link.canonicalize().map_err(unreadable(link))?;
        if target.starts_with(&self.listing.root) {
            return Ok(Some(target));
        }
        match self.scope {
            Scope::Job => {
                let (link, target) = (link.display(), target.display());
                Err(wrong_files(format!("{link} is a link to {target}, outside the folder")).hint(REPLACE_LINK))
            }
            Scope::Sources(_) => Ok(None),
        }
    }
}

const REPLACE_LINK: &str = "put a copy in place of the link; or exclude it with a pattern in .musterignore, and name the data by its absolute path";

/// The error for a link whose target cannot be read.
fn unusable_link(link: &Path, error: io::Error) -> Error {
    if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
        return link_loop(link);
    }
    wrong_files(format!("the target of the link {} cannot be read", link.display())).because(error).hint(REPLACE_LINK)
}

/// The error for a link that leads to itself, or to a folder that contains it.
fn link_loop(link: &Path) -> Error {
    let sentence = format!("{} is a link to itself, or to a folder that contains it", link.display());
    wrong_files(sentence).hint(REPLACE_LINK)
}
