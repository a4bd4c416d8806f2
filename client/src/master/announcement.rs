//! The file that contains the address, the token and the job of a local master. The user's other commands find the
//! master by this file.
//!
//! The client that started the master holds a lock on the file. The kernel releases the lock when that client dies,
//! whatever the cause. So a file without a lock is stale. A process id could not show this, because the kernel reuses
//! process ids.

use std::fs::{self, DirBuilder, File, Metadata, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use master_client::{MasterUrl, Token};
use protocol::ids::JobName;
use serde::{Deserialize, Serialize};

/// The extension of a complete file. A file that is still being written has no extension.
const ENDING: &str = "json";
/// The boot id, which changes with each start of the machine (proc_sys_kernel(5)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The process's network namespace (network_namespaces(7)). Each container has its own namespace.
const NAMESPACE: &str = "/proc/self/ns/net";
/// The machine's id, which stays the same when the machine restarts.
const MACHINE_ID: &str = "/etc/machine-id";

/// A running local master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The master's address on this machine.
    pub(crate) url: MasterUrl,
    /// The token that the master accepts.
    pub(crate) token: Token,
    /// The master's only job.
    pub(crate) job: JobName,
}

/// The JSON in a local master's file.
#[derive(Serialize, Deserialize)]
struct AnnouncementFile {
    url: String,
    token: String,
    /// The client's process, for people who read the file.
    pid: u32,
    job: JobName,
    /// The network in which the address is valid. Machines and containers of other networks may share the folder.
    network: Network,
}

/// The file of a running master. Dropping the value removes the file.
#[derive(Debug)]
pub(crate) struct Announcement {
    path: PathBuf,
    /// Kept open, because closing the file releases the lock.
    _file: File,
}

impl Announcement {
    /// Writes the master's file into the first usable folder.
    pub(crate) fn write(folders: &[PathBuf], master: &Announced) -> io::Result<Self> {
        in_first(folders, |folder| Self::write_in(folder, master))
    }

    fn write_in(folder: &Path, master: &Announced) -> io::Result<Self> {
        prepare(folder)?;
        let Announced { url, token, job } = master;
        let (url, token, pid) = (url.to_string(), token.text().to_owned(), std::process::id());
        let contents = AnnouncementFile { url, token, pid, job: job.clone(), network: Network::own() };
        // tempfile creates files that only their owner can read.
        let mut file = tempfile::Builder::new().prefix(".").tempfile_in(folder)?;
        file.write_all(&serde_json::to_vec(&contents)?)?;
        file.as_file().try_lock()?;
        let path = folder.join(format!("{}.{ENDING}", uuid::Uuid::new_v4()));
        let file = file.persist(&path)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // The error is ignored, because the file is stale once this process has ended.
        let _ = fs::remove_file(&self.path);
    }
}

/// The first usable folder for the file of a master.
pub(crate) fn usable(folders: &[PathBuf]) -> io::Result<&Path> {
    in_first(folders, |folder| prepare(folder).map(|()| folder))
}

/// Does `work` in the first folder in which it succeeds. Otherwise, returns the error of the last folder.
fn in_first<'a, T>(folders: &'a [PathBuf], work: impl Fn(&'a Path) -> io::Result<T>) -> io::Result<T> {
    let none = Err(io::Error::new(ErrorKind::NotFound, "there is no home folder"));
    folders.iter().fold(none, |outcome, folder| outcome.or_else(|_| work(folder)))
}

/// Creates the folder if it is missing. Checks that only this user can use the folder.
fn prepare(folder: &Path) -> io::Result<()> {
    let refused = || io::Error::new(ErrorKind::PermissionDenied, format!("{} {NOT_PRIVATE}", folder.display()));
    let uid = own_uid().ok_or_else(refused)?;
    let nearest = folder.ancestors().skip(1).find_map(|ancestor| ancestor.metadata().ok());
    // With `sudo -E`, root has the variables with the user's folders. Root must not create folders there, because the
    // user could not use them.
    if nearest.is_some_and(|nearest| nearest.uid() != uid) {
        return Err(refused());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if is_private(&folder.symlink_metadata()?, uid) { Ok(()) } else { Err(refused()) }
}

/// The result of [`find`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundMaster {
    /// The running masters.
    pub(crate) masters: Vec<Announced>,
    /// Files and folders that are not private, and files with invalid text. Each comes with the reason.
    pub(crate) ignored: Vec<(PathBuf, &'static str)>,
}

const NOT_PRIVATE: &str = "must belong to you, and no other user may read or write it";
const NOT_UNDERSTOOD: &str = "is not the file of a local master";

/// Reads the files in these folders, and removes stale files.
pub(crate) fn find(folders: &[PathBuf]) -> FoundMaster {
    let mut found = FoundMaster::default();
    for folder in folders {
        match folder.symlink_metadata() {
            Ok(metadata) if own_uid().is_some_and(|uid| is_private(&metadata, uid)) => find_in(folder, &mut found),
            Ok(_) => found.ignored.push((folder.clone(), NOT_PRIVATE)),
            // The folder does not exist, or cannot be read.
            Err(_) => {}
        }
    }
    found
}

fn find_in(folder: &Path, found: &mut FoundMaster) {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|end| end == ENDING)) {
        match state_of(&path) {
            Ok(AnnouncedState::Living(master)) => found.masters.push(master),
            Ok(AnnouncedState::Ignored(reason)) => found.ignored.push((path, reason)),
            // The error is ignored: another command may have removed the file already.
            Ok(AnnouncedState::Stale) => drop(fs::remove_file(path)),
            // The file belongs to another machine or container, or cannot be read, for example because it was removed.
            Ok(AnnouncedState::Elsewhere) | Err(_) => {}
        }
    }
}

/// The state of the master that a file describes.
enum AnnouncedState {
    /// The master runs.
    Living(Announced),
    /// The master's client ended without removing the file.
    Stale,
    /// The master belongs to another machine or container.
    Elsewhere,
    /// The file is not private, or its text is invalid.
    Ignored(&'static str),
}

fn state_of(path: &Path) -> io::Result<AnnouncedState> {
    if !own_uid().is_some_and(|uid| path.symlink_metadata().is_ok_and(|metadata| is_private(&metadata, uid))) {
        return Ok(AnnouncedState::Ignored(NOT_PRIVATE));
    }
    let mut file = File::open(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let state = parse(&text, &Network::own());
    // The lock is not checked for a file of another machine: some file systems do not share locks between machines.
    if matches!(state, AnnouncedState::Elsewhere | AnnouncedState::Stale) {
        return Ok(state);
    }
    // A reader's lock is shared. Another reader would mistake an exclusive lock for the lock of the client.
    match file.try_lock_shared() {
        Ok(()) => Ok(AnnouncedState::Stale),
        Err(TryLockError::WouldBlock) => Ok(state),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn parse(text: &str, here: &Network) -> AnnouncedState {
    let Ok(contents) = serde_json::from_str(text) else { return AnnouncedState::Ignored(NOT_UNDERSTOOD) };
    let AnnouncementFile { url, token, pid: _, job, network } = contents;
    if network.is_before_boot_of(here) {
        return AnnouncedState::Stale;
    }
    if network != *here {
        return AnnouncedState::Elsewhere;
    }
    match (url.parse(), token.parse()) {
        (Ok(url), Ok(token)) => AnnouncedState::Living(Announced { url, token, job }),
        (_, _) => AnnouncedState::Ignored(NOT_UNDERSTOOD),
    }
}

/// Whether only the user `uid` can use the file or folder. A symbolic link is never private.
fn is_private(found: &Metadata, uid: u32) -> bool {
    found.uid() == uid && found.mode() & 0o077 == 0
}

/// The network in which an address such as `127.0.0.1` is valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Network {
    /// The machine's id (machine-id(5)). Empty if the machine has no id.
    machine: String,
    boot_id: String,
    /// The network namespace of the process.
    namespace: String,
}

impl Network {
    fn own() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let namespace = fs::read_link(NAMESPACE).unwrap_or_default().display().to_string();
        Self { machine: text(MACHINE_ID), boot_id: text(BOOT_ID), namespace }
    }

    /// Whether this network is of the same machine as `here`, but from before that machine's last start.
    fn is_before_boot_of(&self, here: &Self) -> bool {
        !here.machine.is_empty() && self.machine == here.machine && self.boot_id != here.boot_id
    }
}

/// The user id of this process, which owns the folder `/proc/self` (proc(5)).
pub(crate) fn own_uid() -> Option<u32> {
    fs::metadata("/proc/self").ok().map(|folder| folder.uid())
}

#[cfg(test)]
#[path = "announcement_tests.rs"]
mod tests;
