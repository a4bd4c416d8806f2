//! Keeps the record of which code is in a working directory. So an agent knows which files a script has changed, even
//! if an earlier agent, or another agent that shares the directory, has put the code there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use protocol::code::{Manifest, OWN_FOLDER, PlacedCode};

/// The record of the code in one working directory.
#[derive(Debug)]
pub(super) struct Record {
    work_dir: PathBuf,
}

impl Record {
    pub(super) fn new(work_dir: PathBuf) -> Self {
        Self { work_dir }
    }

    /// Waits until no other agent changes this working directory. Dropping the file releases the lock.
    pub(super) fn lock(&self) -> io::Result<File> {
        let folder = self.work_dir.join(OWN_FOLDER);
        fs::create_dir_all(&folder)?;
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Writes the record completely or not at all, even if the machine loses its power.
    pub(super) fn write(&self, placed: &PlacedCode) -> io::Result<()> {
        let unfinished = self.work_dir.join(OWN_FOLDER).join("placed.new");
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(placed)?)?;
        file.sync_all()?;
        fs::rename(unfinished, PlacedCode::file(&self.work_dir))
    }
}

/// Whether each file of the code exists, with any content.
pub(super) fn has_all_files(work_dir: &Path, code: &Manifest) -> bool {
    code.files().iter().all(|file| fs::symlink_metadata(work_dir.join(file.path.as_str())).is_ok())
}
