//! The folder from which scripts import the helper `muster.py`.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tracing::warn;
use uuid::Uuid;

/// The helper's program.
const SOURCE: &str = include_str!("../python/muster.py");

/// Separates the folders of `PYTHONPATH`.
const SEPARATOR: u8 = b':';

/// A folder that only the agent's user can read. Dropping this value removes the folder.
#[derive(Debug)]
pub struct HelperFolder(PathBuf);

impl HelperFolder {
    /// Creates the folder in the first writable folder of `folders`. A container's root may be read-only.
    ///
    /// # Errors
    /// The error of the last folder.
    pub fn create(folders: &[PathBuf]) -> io::Result<Self> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for folder in folders {
            match Self::create_in(folder) {
                Ok(created) => return Ok(created),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn create_in(folder: &Path) -> io::Result<Self> {
        let folder = fs::canonicalize(folder)?;
        if folder.as_os_str().as_encoded_bytes().contains(&SEPARATOR) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "PYTHONPATH cannot name a folder with a colon"));
        }
        let path = folder.join(format!("muster-{}", Uuid::new_v4()));
        DirBuilder::new().mode(0o700).create(&path)?;
        // From here on, `created` removes the folder if writing fails.
        let created = Self(path);
        fs::write(created.0.join("muster.py"), SOURCE)?;
        Ok(created)
    }

    /// The absolute path of this folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for HelperFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            warn!(%error, folder = %self.0.display(), "cannot remove the folder of the helper");
        }
    }
}
