//! Lists the files of a folder that no rule of `rules.rs` leaves out. Follows links to files and folders within the
//! folder. Leaves out sockets, devices and links whose target does not exist.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use protocol::code::ScriptPath;

use super::PackError;
use super::rules::Rules;

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

struct Walk<'a> {
    listing: &'a mut Listing,
    scope: Scope<'a>,
    rules: Rules,
    /// The current folder and the folders above it, without links.
    way: Vec<PathBuf>,
    seen: usize,
}

impl Listing {
    /// Lists a folder. Blocks.
    pub(crate) fn of(folder: &Path, scope: Scope<'_>) -> Result<Self, PackError> {
        let root = folder.canonicalize().map_err(failed(folder))?;
        if !root.is_dir() {
            return Err(PackError::NotAFolder(root));
        }
        let rules = Rules::of(&root)?;
        let mut listing = Self { root: root.clone(), files: Vec::new(), folders: Vec::new(), modified: None };
        let mut walk = Walk { listing: &mut listing, scope, rules, way: Vec::new(), seen: 0 };
        walk.folder(&root, Path::new(""))?;
        Ok(listing)
    }
}

impl Walk<'_> {
    fn folder(&mut self, real: &Path, path: &Path) -> Result<(), PackError> {
        if self.way.iter().any(|above| above == real) {
            return Err(PackError::LinkLoop(self.listing.root.join(path)));
        }
        self.way.push(real.to_owned());
        self.listing.folders.push(real.to_owned());
        self.rules.enter(real, path)?;
        for entry in fs::read_dir(real).map_err(failed(real))? {
            let entry = entry.map_err(failed(real))?;
            self.seen += 1;
            if self.seen > ENTRIES_MAX {
                return Err(PackError::TooMany { folder: self.listing.root.clone(), most: ENTRIES_MAX });
            }
            self.entry(&entry.path(), &path.join(entry.file_name()))?;
        }
        self.rules.leave();
        self.way.pop();
        Ok(())
    }

    fn entry(&mut self, place: &Path, path: &Path) -> Result<(), PackError> {
        let is_link = fs::symlink_metadata(place).is_ok_and(|found| found.is_symlink());
        let metadata = match fs::metadata(place) {
            Ok(metadata) => metadata,
            // The target of a link does not exist, or the file was removed after the folder was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if self.rules.leave_out(path, false) => return Ok(()),
            Err(_) if is_link => return Err(PackError::LinkLoop(place.to_owned())),
            Err(source) => return Err(PackError::Read { path: place.to_owned(), source }),
        };
        let is_left_out = self.rules.leave_out(path, metadata.is_dir());
        if is_left_out && !(metadata.is_dir() && !is_link && self.rules.take_back()) {
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
    fn target(&self, link: &Path) -> Result<Option<PathBuf>, PackError> {
        let target = link.canonicalize().map_err(failed(link))?;
        if target.starts_with(&self.listing.root) {
            return Ok(Some(target));
        }
        match self.scope {
            Scope::Job => Err(PackError::LinkOutside { link: link.to_owned(), target }),
            Scope::Sources(_) => Ok(None),
        }
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> PackError {
    move |source| PackError::Read { path: path.to_owned(), source }
}
