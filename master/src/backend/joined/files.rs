//! Stores the newest message of each machine in the state directory, in `machines/JOB.UID/REPLICA.json`. The table of
//! pods lists a machine only after its message is on disk. So the next master finds every machine that may run a
//! script.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use job::key::JobKey;
use protocol::ids::ReplicaId;
use protocol::join::JoinRequest;
use tracing::warn;

use crate::host::files::{names_in, put};

/// The folder of all messages.
#[derive(Debug)]
pub(super) struct MessageFolder(PathBuf);

impl MessageFolder {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Reads every message, with its job and place. Ignores files and folders with other names. Returns `None` for an
    /// invalid message, such as one that somebody has edited. The master then does not poll the agent that sent the
    /// message. So the agent kills its script and joins again.
    ///
    /// # Errors
    /// Fails if a folder or a message cannot be read. If a message cannot be read, the error names its file.
    pub(super) fn read(&self) -> io::Result<Vec<(JobKey, ReplicaId, Option<JoinRequest>)>> {
        let mut found = vec![];
        for folder in names_in(&self.0)? {
            let Some(job) = job_of(&folder) else { continue };
            for name in names_in(&self.0.join(&folder))? {
                let Some(replica) = name.strip_suffix(".json").and_then(|name| name.parse().ok()) else { continue };
                let file = self.path(&job, replica);
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
                let message = serde_json::from_slice(&fs::read(&file).map_err(named)?);
                if let Err(error) = &message {
                    warn!(file = %file.display(), %error, "the message of a machine is invalid");
                }
                found.push((job.clone(), replica, message.ok()));
            }
        }
        Ok(found)
    }

    /// Writes a message completely or not at all.
    pub(super) fn write(&self, job: &JobKey, replica: ReplicaId, message: &JoinRequest) -> io::Result<()> {
        let path = self.path(job, replica);
        let folder = self.folder(job);
        fs::create_dir_all(&folder)?;
        let unfinished = path.with_extension("new");
        put(&serde_json::to_vec(message)?, (File::create(&unfinished)?, &unfinished), &path)
    }

    /// Removes a message, and then the job's folder if the folder is empty.
    pub(super) fn remove(&self, job: &JobKey, replica: ReplicaId) {
        match fs::remove_file(self.path(job, replica)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(job = %job.name, %replica, %error, "could not remove a machine's message from disk");
            }
            // The folder stays if it contains messages of other machines.
            Ok(()) | Err(_) => drop(fs::remove_dir(self.folder(job))),
        }
    }

    fn folder(&self, job: &JobKey) -> PathBuf {
        self.0.join(format!("{}.{}", job.name, job.uid))
    }

    fn path(&self, job: &JobKey, replica: ReplicaId) -> PathBuf {
        self.folder(job).join(format!("{replica}.json"))
    }
}

/// The job whose messages are in the folder with this name.
fn job_of(folder: &str) -> Option<JobKey> {
    // A job's name contains no dot.
    let (name, uid) = folder.split_once('.')?;
    Some(JobKey { name: name.parse().ok()?, uid: uid.to_owned() })
}
