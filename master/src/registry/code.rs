//! The code of the registry's jobs: checked before a job is accepted, and removed when no job uses it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use protocol::code::CodeId;
use protocol::job::JobSpec;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::interval;
use tracing::warn;

use super::{Jobs, JobsError};
use crate::code::{CodeError, CodeStore};

/// How often unused code is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

impl Jobs {
    /// The code that jobs bring.
    pub fn code(&self) -> &Arc<CodeStore> {
        &self.context.code
    }

    /// Checks that this master has the code of a new job.
    pub(super) async fn check_code(&self, spec: &JobSpec) -> Result<(), JobsError> {
        let Some(id) = spec.code else { return Ok(()) };
        let (code, script) = (Arc::clone(self.code()), spec.script.clone());
        let checked = spawn_blocking(move || code.require(id, &script)).await;
        checked.unwrap_or_else(|error| Err(CodeError::Disk(failed(error)))).map_err(JobsError::Code)
    }

    /// Removes the code that no job on record uses, now and then.
    pub(super) async fn sweep_code(self: Arc<Self>) {
        let mut times = interval(SWEEP_INTERVAL);
        loop {
            times.tick().await;
            let (code, used) = (Arc::clone(self.code()), self.codes());
            let swept = spawn_blocking(move || code.sweep(&used, SystemTime::now())).await;
            if let Err(error) = swept.unwrap_or_else(|error| Err(failed(error))) {
                warn!(%error, "could not remove unused code");
            }
        }
    }

    /// The code of all jobs on record.
    fn codes(&self) -> BTreeSet<CodeId> {
        self.lock().values().filter_map(|handle| handle.view.borrow().spec.code).collect()
    }
}

fn failed(error: JoinError) -> io::Error {
    io::Error::other(error)
}
