//! The folder of a job's output: the names of its files, and their disk space. The functions block the thread.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use protocol::ids::ReplicaId;

use super::OutputSpace;
use crate::host::files::if_there;

/// The names of one replica's files: `worker-2.log`, and others beside it. A master has one value in memory for each
/// finished replica. So all replicas of a job share one copy of the folder's long path.
#[derive(Debug, Clone)]
pub(super) struct Names {
    dir: Arc<Path>,
    replica: ReplicaId,
}

impl Names {
    pub(super) fn new(dir: Arc<Path>, replica: ReplicaId) -> Self {
        Self { dir, replica }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn with_extension(&self, extension: &str) -> PathBuf {
        self.dir.join(format!("{}.{extension}", self.replica))
    }

    pub(super) fn log(&self) -> PathBuf {
        self.with_extension("log")
    }
}

/// The disk space of the files in a folder, and when the newest file was written.
pub(super) fn kept_below(dir: &Path) -> io::Result<OutputSpace> {
    let mut kept = OutputSpace { bytes: 0, newest: SystemTime::UNIX_EPOCH };
    for entry in if_there(fs::read_dir(dir))?.into_iter().flatten() {
        let file = entry?.metadata()?;
        // The length is exact, because the files have no holes. The block count may be too small: the kernel may
        // allocate blocks later.
        kept.bytes += file.len();
        kept.newest = kept.newest.max(file.modified()?);
    }
    Ok(kept)
}

/// The replicas whose output the folder contains.
pub(super) fn replicas_in(dir: &Path) -> io::Result<Vec<ReplicaId>> {
    let replica = |path: PathBuf| path.file_stem()?.to_str()?.parse().ok();
    Ok(fs::read_dir(dir)?.flatten().filter_map(|entry| replica(entry.path())).collect())
}
