//! Remembers which code is in a working directory, in `.muster/placed.json`. So an agent knows which files a script has
//! changed, even if an earlier agent, or another agent that shares the directory, has put the code there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use protocol::code::Manifest;

/// The record of the code in one working directory.
#[derive(Debug)]
pub(super) struct Placed {
    folder: PathBuf,
}

impl Placed {
    /// `folder` is Muster's folder in the working directory.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Waits until no other agent changes this working directory. Dropping the file releases the lock.
    pub(super) fn lock(&self) -> io::Result<File> {
        fs::create_dir_all(&self.folder)?;
        let lock = File::options().create(true).truncate(false).write(true).open(self.folder.join("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// The code that was put in place last. `None` if there is no valid record.
    pub(super) fn read(&self) -> Option<Manifest> {
        serde_json::from_slice(&fs::read(self.file()).ok()?).ok()
    }

    /// Writes the record completely or not at all.
    pub(super) fn write(&self, code: &Manifest) -> io::Result<()> {
        let unfinished = self.folder.join("placed.new");
        fs::write(&unfinished, serde_json::to_vec(code)?)?;
        fs::rename(unfinished, self.file())
    }

    fn file(&self) -> PathBuf {
        self.folder.join("placed.json")
    }
}

/// Whether each file of the code exists, with any content.
pub(super) fn has_all_files(work_dir: &Path, code: &Manifest) -> bool {
    code.files().iter().all(|file| fs::symlink_metadata(work_dir.join(file.path.as_str())).is_ok())
}
