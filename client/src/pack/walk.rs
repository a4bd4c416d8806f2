//! Lists the files of a folder. A link to a file or folder within it stands for its target; sockets, devices and links
//! that lead nowhere are left out.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::PackError;
use super::rules::Rules;

/// Maximum files and folders to look at. More would take too long.
const ENTRIES_MAX: usize = 200_000;
/// The owner may execute the file.
const EXECUTABLE: u32 = 0o100;

/// A file to pack.
#[derive(Debug)]
pub(super) struct Found {
    /// Its path in the job.
    pub(super) path: PathBuf,
    /// Where it is.
    pub(super) real: PathBuf,
    /// Its length in bytes, as the walk has seen it.
    pub(super) size: u64,
    pub(super) executable: bool,
}

struct Walk<'a> {
    root: &'a Path,
    rules: Rules,
    /// The folders on the way to the current one, without links.
    way: Vec<PathBuf>,
    seen: usize,
    found: Vec<Found>,
}

/// The files of a folder. Its path must contain no links.
pub(super) fn files(root: &Path) -> Result<Vec<Found>, PackError> {
    let mut walk = Walk { root, rules: Rules::of(root)?, way: Vec::new(), seen: 0, found: Vec::new() };
    walk.folder(root, Path::new(""))?;
    Ok(walk.found)
}

impl Walk<'_> {
    fn folder(&mut self, real: &Path, path: &Path) -> Result<(), PackError> {
        if self.way.iter().any(|above| above == real) {
            return Err(PackError::LinkLoop(self.root.join(path)));
        }
        self.way.push(real.to_owned());
        self.rules.enter(real, path)?;
        for entry in fs::read_dir(real).map_err(failed(real))? {
            let entry = entry.map_err(failed(real))?;
            self.seen += 1;
            if self.seen > ENTRIES_MAX {
                return Err(PackError::TooMany { folder: self.root.to_owned(), most: ENTRIES_MAX });
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
            // A link that leads nowhere, or a file that vanished after the folder was listed, as editors' files do.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if self.rules.leave_out(path, false) => return Ok(()),
            Err(_) if is_link => return Err(PackError::LinkLoop(place.to_owned())),
            Err(source) => return Err(PackError::Read { path: place.to_owned(), source }),
        };
        let is_left_out = self.rules.leave_out(path, metadata.is_dir());
        if is_left_out && !(metadata.is_dir() && !is_link && self.rules.take_back()) {
            return Ok(());
        }
        let real = if is_link { self.target(place)? } else { place.to_owned() };
        if metadata.is_dir() {
            return self.folder(&real, path);
        }
        if metadata.is_file() {
            let executable = metadata.permissions().mode() & EXECUTABLE != 0;
            self.found.push(Found { path: path.to_owned(), real, size: metadata.len(), executable });
        }
        Ok(())
    }

    /// The target of a link, which must be in the folder.
    fn target(&self, link: &Path) -> Result<PathBuf, PackError> {
        let target = link.canonicalize().map_err(failed(link))?;
        if target.starts_with(self.root) {
            Ok(target)
        } else {
            Err(PackError::LinkOutside { link: link.to_owned(), target })
        }
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> PackError {
    move |source| PackError::Read { path: path.to_owned(), source }
}
