//! The working directories of jobs that bring their code, `work/JOB.UID/` in the state directory. All replicas of a job
//! share one. It lives as long as the job's record, because it contains what the scripts have written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use job::key::JobKey;
use placed_code::PlacedCode;
use protocol::code::OWN_FOLDER;
use uuid::Uuid;

use crate::host::files::{names_in, unless_absent};

/// Files are not counted beyond this number.
const COUNTED_MAX: u64 = 100_000;

/// The folder of all working directories.
#[derive(Debug, Clone)]
pub(super) struct WorkDirs(PathBuf);

impl WorkDirs {
    /// The folders below `state_dir`.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("work"))
    }

    pub(super) fn path(&self, job: &JobKey) -> PathBuf {
        self.0.join(format!("{}.{}", job.name, job.uid))
    }

    /// The jobs that have a working directory. A user may keep folders with other names there.
    pub(super) fn jobs(&self) -> io::Result<Vec<JobKey>> {
        let key = |folder: &String| {
            let (name, uid) = folder.rsplit_once('.')?;
            Uuid::try_parse(uid).ok()?;
            Some(JobKey { name: name.parse().ok()?, uid: uid.to_owned() })
        };
        Ok(names_in(&self.0)?.iter().filter_map(key).collect())
    }

    /// Creates the job's working directory, if it does not exist.
    pub(super) fn create(&self, job: &JobKey) -> io::Result<PathBuf> {
        let folder = self.path(job);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    pub(super) fn remove(&self, job: &JobKey) -> io::Result<()> {
        unless_absent(fs::remove_dir_all(self.path(job)))
    }

    /// The number of files that the job's scripts have written or changed. Folders that cannot be read are not counted.
    /// Stops at the deadline, after the file that it looks at.
    pub(super) fn written_files(&self, job: &JobKey, deadline: Instant) -> u64 {
        let root = self.path(job);
        let placed = PlacedCode::read(&root).ok().flatten().unwrap_or_default();
        let delivered = placed.delivered();
        let (mut folders, mut written) = (vec![root.clone()], 0);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if written >= COUNTED_MAX || Instant::now() >= deadline {
                    return written;
                }
                let (path, name) = (entry.path(), entry.file_name());
                let relative = path.strip_prefix(&root).ok().and_then(Path::to_str);
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                match is_folder {
                    true if name == OWN_FOLDER || name == "__pycache__" => {}
                    true => folders.push(path),
                    false => written += u64::from(!relative.is_some_and(|relative| delivered.has(&root, relative))),
                }
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn files_are_counted_until_the_deadline() {
        let state = tempfile::tempdir().expect("no folder");
        let (folders, now) = (WorkDirs::new(state.path()), Instant::now());
        let job = JobKey { name: "digits".parse().expect("not a name"), uid: "uid".to_owned() };
        let folder = folders.create(&job).expect("cannot create the folder");
        for name in ["model", "log"] {
            fs::write(folder.join(name), "").expect("cannot write the file");
        }
        assert_eq!(folders.written_files(&job, now + Duration::from_secs(600)), 2);
        assert_eq!(folders.written_files(&job, now), 0);
    }
}
