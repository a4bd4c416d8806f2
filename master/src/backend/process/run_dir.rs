//! The folder of one pod, `pods/<job>/<replica>/` in the state directory. The folder contains the agent's own messages,
//! and code that is arriving. After a master has died, the folder proves that the pod existed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use protocol::ids::{JobName, ReplicaId};

use crate::host::files::{names_in, unless_absent};

/// The folder of all pods' folders.
#[derive(Debug, Clone)]
pub(super) struct RunDirs(PathBuf);

impl RunDirs {
    /// The folders below `state_dir`.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("pods"))
    }

    /// Creates a pod's folder.
    pub(super) fn create(&self, job: &JobName, replica: ReplicaId) -> io::Result<()> {
        fs::create_dir_all(self.path(job, replica))
    }

    /// Creates an empty folder for the code that arrives at a pod. Removes the folder of an earlier pod.
    pub(super) fn create_code_dir(&self, job: &JobName, replica: ReplicaId) -> io::Result<PathBuf> {
        let folder = self.path(job, replica).join("code");
        unless_absent(fs::remove_dir_all(&folder))?;
        fs::create_dir(&folder)?;
        Ok(folder)
    }

    /// Opens the file for the agent's own messages.
    pub(super) fn agent_log(&self, job: &JobName, replica: ReplicaId) -> io::Result<File> {
        File::create(self.path(job, replica).join("agent.log"))
    }

    /// The agent's last message, as the reason for a pod's end.
    pub(super) fn last_message(&self, job: &JobName, replica: ReplicaId) -> Option<String> {
        let text = fs::read_to_string(self.path(job, replica).join("agent.log")).ok()?;
        text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }

    /// Removes a pod's folder, and also the job's folder if no other pod has a folder there.
    pub(super) fn remove(&self, job: &JobName, replica: ReplicaId) -> io::Result<()> {
        unless_absent(fs::remove_dir_all(self.path(job, replica)))?;
        match fs::remove_dir(self.0.join(job.as_str())) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => unless_absent(removed),
        }
    }

    /// Every pod that has a folder. Folders with other names are ignored.
    pub(super) fn list(&self) -> io::Result<Vec<(JobName, ReplicaId)>> {
        let mut found = vec![];
        for job in names_in(&self.0)? {
            let Ok(job_name) = job.parse::<JobName>() else { continue };
            let replicas = names_in(&self.0.join(&job))?;
            found.extend(replicas.iter().filter_map(|name| Some((job_name.clone(), name.parse().ok()?))));
        }
        Ok(found)
    }

    fn path(&self, job: &JobName, replica: ReplicaId) -> PathBuf {
        self.0.join(job.as_str()).join(replica.to_string())
    }
}
