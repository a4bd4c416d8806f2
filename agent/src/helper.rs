//! The folder from which scripts import the helper `muster.py`. Python also runs the `sitecustomize.py` in this folder,
//! see `stacks`.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tracing::warn;
use uuid::Uuid;

use crate::process::environment::Environment;

/// The name of the helper's file.
const FILE: &str = "muster.py";

/// The files in the folder: their names and contents.
const FILES: [(&str, &str); 2] =
    [(FILE, include_str!("../python/muster.py")), ("sitecustomize.py", include_str!("../python/sitecustomize.py"))];

/// The start of the folder's name.
const PREFIX: &str = "muster-helper-";

/// Separates the folders of `PYTHONPATH`.
const SEPARATOR: u8 = b':';

/// A folder that only the agent's user can read. Dropping this value removes the folder.
#[derive(Debug)]
pub struct HelperFolder {
    places: Vec<PathBuf>,
    made: Option<Made>,
}

/// The folder, and the lock on it. Programs that remove old files from /tmp skip locked folders (tmpfiles.d(5)).
#[derive(Debug)]
struct Made {
    path: PathBuf,
    lock: File,
}

/// Where to create the folder: in `XDG_RUNTIME_DIR` if it belongs to this user, or else in the first of `folders`.
pub fn places(environment: &Environment, folders: &[PathBuf]) -> Vec<PathBuf> {
    let runtime = environment.get(OsStr::new("XDG_RUNTIME_DIR")).map(PathBuf::from);
    let own = runtime.filter(|folder| folder.is_absolute() && is_own_folder(folder));
    own.into_iter().chain(folders.iter().cloned()).collect()
}

impl HelperFolder {
    /// A folder in the first writable place. A container's root may be read-only. Also removes folders that killed
    /// agents have left in this place.
    pub fn new(places: Vec<PathBuf>) -> Self {
        let made = make(&places);
        Self { places, made }
    }

    /// The absolute path of the folder; `None` if it cannot be created. If somebody has removed or replaced the folder,
    /// creates another one: other users could put modules into a folder with the old name.
    pub fn path(&mut self) -> Option<&Path> {
        if !self.made.as_ref().is_some_and(Made::is_intact) {
            self.made = make(&self.places);
        }
        self.made.as_ref().map(|made| made.path.as_path())
    }
}

fn make(places: &[PathBuf]) -> Option<Made> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for place in places {
        match Made::in_place(place) {
            Ok(made) => return Some(made),
            Err(error) => failure = error,
        }
    }
    warn!(error = %failure, "scripts cannot import muster: the folder of muster.py cannot be created");
    None
}

impl Made {
    fn in_place(place: &Path) -> io::Result<Self> {
        let place = fs::canonicalize(place)?;
        if place.as_os_str().as_encoded_bytes().contains(&SEPARATOR) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "PYTHONPATH cannot name a folder with a colon"));
        }
        remove_leftovers(&place);
        let path = place.join(format!("{PREFIX}{}", Uuid::new_v4()));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::open(&path)?;
        // From here on, `made` removes the folder if writing fails.
        let made = Self { path, lock };
        // Lock before the file exists: see `remove_leftovers`. Some file systems have no locks.
        let _ = flock(&made.lock, FlockOperation::NonBlockingLockExclusive);
        for (name, content) in FILES {
            fs::write(made.path.join(name), content)?;
        }
        Ok(made)
    }

    /// Whether the path still leads to this folder, and the folder contains its files.
    fn is_intact(&self) -> bool {
        self.is_there() && FILES.iter().all(|(name, _)| self.path.join(name).is_file())
    }

    fn is_there(&self) -> bool {
        let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match (fs::symlink_metadata(&self.path), self.lock.metadata()) {
            (Ok(now), Ok(then)) => id(now) == id(then),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            warn!(%error, folder = %self.path.display(), "cannot remove the folder of the helper");
        }
    }
}

/// Removes the folders of agents that were killed. The lock of such a folder is free. A living agent locks its folder
/// before it writes the helper.
fn remove_leftovers(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    let is_named = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
    for folder in entries.flatten().filter(is_named).map(|entry| entry.path()) {
        if is_own_folder(&folder)
            && folder.join(FILE).is_file()
            && let Ok(lock) = File::open(&folder)
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            // Another agent may be removing the same folder.
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

/// Whether the path is a folder of this user, and not a link.
fn is_own_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_behind(place: &Path, name: &str) -> PathBuf {
        let path = place.join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join(FILE), "").unwrap();
        path
    }

    #[test]
    fn the_next_agent_removes_what_a_killed_agent_has_left_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let mut living = HelperFolder::new(vec![place.path().to_owned()]);
        let killed = left_behind(place.path(), "muster-helper-1");
        let of_user = left_behind(place.path(), "muster-copy");
        let begun = place.path().join("muster-helper-2");
        fs::create_dir(&begun).unwrap();
        let mut next = HelperFolder::new(vec![place.path().to_owned()]);
        assert!(!killed.exists(), "the folder of the killed agent is still there");
        assert!(of_user.exists() && begun.exists() && next.path().unwrap().exists());
        assert!(living.path().unwrap().join(FILE).exists());
        drop((living, next));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_another_program_has_removed_or_replaced_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = HelperFolder::new(vec![place.path().to_owned()]);
        let first = folder.path().unwrap().to_owned();
        assert_eq!(folder.path(), Some(first.as_path()));
        fs::remove_dir_all(&first).unwrap();
        // Another program creates a folder with the same name.
        fs::create_dir(&first).unwrap();
        let second = folder.path().unwrap().to_owned();
        assert!(second != first && second.join(FILE).exists());
        assert!(first.exists(), "the agent has removed a folder that it has not created");
        fs::remove_file(second.join(FILE)).unwrap();
        assert!(folder.path().unwrap().join(FILE).exists());
    }

    #[test]
    fn the_runtime_folder_of_the_user_is_the_first_place() {
        let runtime = tempfile::tempdir().unwrap();
        let of = |value: &Path| Environment::from([("XDG_RUNTIME_DIR".into(), value.into())]);
        let others = [PathBuf::from("/tmp")];
        assert_eq!(places(&of(runtime.path()), &others), [runtime.path(), Path::new("/tmp")]);
        for unusable in [runtime.path().join("absent"), PathBuf::from("relative")] {
            assert_eq!(places(&of(&unusable), &others), others);
        }
        assert_eq!(places(&Environment::new(), &others), others);
    }
}
