//! The folder in which a master keeps all its files. Only one master at a time can use it.
//!
//! - `lock`: a file that the master locks. It contains the master's process id, for the error message of a second
//!   master.
//! - `agent-key`: the key of the agents' tokens, if agents outlive the master.
//! - `jobs.sqlite`: the records. In Kubernetes, records are ConfigMaps `muster-NAME` instead.
//! - `code/`: manifests and blobs of the code that jobs bring, named by their SHA-256. In Kubernetes, this is a cache of
//!   the ConfigMaps `muster-code-ID`, except for code above 900 KiB.
//! - `logs/UID/REPLICA.log` and `.times`: the newest 64 MiB of a replica's output, and when its bytes were printed.
//!   A master with Kubernetes uses the subfolder `kubernetes-HASH` of `code/`, `history/` and `logs/`, one for each
//!   namespace.
//! - `history/ENDED-NAME.UID.json`: the jobs that have ended, see the crate `history`.
//! - `machines/JOB.UID/REPLICA.json`: the newest message of each machine that has joined.
//! - `pods/JOB/REPLICA/`: the agent's own log, and code that arrives. The folder shows that the pod existed.
//! - `work/JOB.UID/`: the working directory of a job that brings its code, with what its scripts have written.
//! - `token`, `master.log`: the token of a local master, and its log.

use std::fs::{DirBuilder, File, Permissions, TryLockError, set_permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tracing::warn;

use super::files::unless_absent;

const OWN_FOLDERS: [&str; 6] = ["code", "history", "logs", "machines", "pods", "work"];
/// The permissions of users other than the owner.
const OTHERS: u32 = 0o077;
const OWN_FILES: [&str; 7] =
    ["jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm", "token", "agent-key", "master.log", "lock"];

/// A state directory. This process locks it until this value is dropped.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Creates the folder if it does not exist, and locks it.
    pub(crate) fn claim(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        // Other users must not read the output and variables of jobs.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("create the state directory {shown} (--state-dir)"))?;
        let lock_path = path.join("lock");
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .with_context(|| format!("the state directory {shown} is not writable (--state-dir)"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The holder's process id only improves the error message.
                let _ = lock.read_to_string(&mut holder);
                let holder = holder.trim();
                bail!(
                    "the state directory {shown} is in use by another master (process {holder}): \
                     stop that master, or choose another --state-dir"
                );
            }
            Err(TryLockError::Error(error)) => return Err(error).context("lock the state directory"),
        }
        let written =
            lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.with_context(|| format!("write the lock file of the state directory {shown} (--state-dir)"))?;
        let path = path.canonicalize().context("resolve the state directory")?;
        match keep_private(&path, |path, mode| set_permissions(path, Permissions::from_mode(mode))) {
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
                warn!(folder = %shown, %error, "other users may read files in the state directory");
            }
            kept => kept.with_context(|| format!("keep other users out of the state directory {shown}"))?,
        }
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the files of a master and its client from the folder, and then the folder if it is empty.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        const CLEAR: &str = "clear the state directory";
        for name in OWN_FOLDERS {
            unless_absent(std::fs::remove_dir_all(self.path.join(name))).context(CLEAR)?;
        }
        for name in OWN_FILES {
            unless_absent(std::fs::remove_file(self.path.join(name))).context(CLEAR)?;
        }
        // This fails if the folder contains files of a user. Such files stay.
        let _ = std::fs::remove_dir(&self.path);
        Ok(())
    }

    pub(crate) fn records(&self) -> PathBuf {
        self.path.join("jobs.sqlite")
    }

    /// The file with the key of the agents' tokens, unless --agent-key-file names another file.
    pub(crate) fn agent_key(&self) -> PathBuf {
        self.path.join("agent-key")
    }

    /// The folder with the code that jobs bring.
    pub(crate) fn code(&self) -> PathBuf {
        self.path.join("code")
    }

    /// The folder with the messages of machines that have joined.
    pub(crate) fn machines(&self) -> PathBuf {
        self.path.join("machines")
    }

    /// The folder with the files of jobs that have ended.
    pub(crate) fn history(&self) -> PathBuf {
        self.path.join("history")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }
}

/// If other users may enter the folder, which someone else has created, keeps them out of the master's own files and
/// folders there. Closes as many as it can before it fails: on a volume of another user, for example with `fsGroup` of
/// Kubernetes, only that user may change the modes of earlier files.
fn keep_private(path: &Path, set_mode: impl Fn(&Path, u32) -> io::Result<()>) -> io::Result<()> {
    let is_private = |path: &Path| path.metadata().map(|found| found.mode() & OTHERS == 0);
    if is_private(path)? {
        return Ok(());
    }
    let folders = OWN_FOLDERS.map(|name| {
        let folder = path.join(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        if is_private(&folder)? { Ok(()) } else { set_mode(&folder, 0o700) }
    });
    let files = OWN_FILES.map(|name| unless_absent(set_mode(&path.join(name), 0o600)));
    folders.into_iter().chain(files).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_another_user_does_not_keep_the_next_folders_open() {
        let state = tempfile::tempdir().expect("no folder");
        set_permissions(state.path(), Permissions::from_mode(0o777)).expect("cannot change the mode");
        for name in ["code", "logs"] {
            DirBuilder::new().create(state.path().join(name)).expect("no folder");
            set_permissions(state.path().join(name), Permissions::from_mode(0o755)).expect("cannot change the mode");
        }
        let of_another_user = |path: &Path, mode| match path.ends_with("code") {
            true => Err(ErrorKind::PermissionDenied.into()),
            false => set_permissions(path, Permissions::from_mode(mode)),
        };
        let kept = keep_private(state.path(), of_another_user).map_err(|error| error.kind());
        assert_eq!(kept, Err(ErrorKind::PermissionDenied));
        let logs = state.path().join("logs").metadata().expect("no folder");
        assert_eq!(logs.mode() & OTHERS, 0, "an earlier failure kept this folder open");
    }
}
