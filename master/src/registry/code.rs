//! Checks the code of a job before the registry accepts the job, and removes code that no job uses from the disk.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use protocol::code::CodeId;
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};
use tracing::warn;

use super::code_copies::{CodeKeeper, KeptCode, Sweep};
use super::error::of_store;
use super::{JobHandle, JobsError};
use crate::code::CodeError;
use crate::driver::{Staged, Staging};
use crate::error_chain::error_chain;
use crate::store::Stored;

/// Interval between two removals of unused code.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

impl CodeKeeper {
    /// Checks that this master has the code of a new job.
    pub(super) async fn check_code(&self, spec: &JobSpec) -> Result<(), JobsError> {
        match spec.code {
            Some(id) => self.require_code(id, spec).await,
            None => Ok(()),
        }
    }

    /// Checks that this master has the code. If the disk has lost the code, first reads it from its copy.
    async fn require_code(&self, id: CodeId, spec: &JobSpec) -> Result<(), JobsError> {
        match self.require_on_disk(id, spec).await {
            Err(JobsError::Code(CodeError::Missing(_))) => {}
            required => return required,
        }
        let copies = self.context.store.code_copies();
        match self.code().restore(id, copies.map(|copies| copies.read(id))).await.map_err(of_store)? {
            true => self.require_on_disk(id, spec).await,
            false => Err(JobsError::Code(CodeError::Missing(id))),
        }
    }

    async fn require_on_disk(&self, id: CodeId, spec: &JobSpec) -> Result<(), JobsError> {
        let (code, script) = (Arc::clone(self.code()), spec.script.clone());
        let checked = spawn_blocking(move || code.require(id, &script)).await;
        checked.unwrap_or_else(|error| Err(CodeError::Disk(io::Error::other(error)))).map_err(JobsError::Code)
    }

    /// Prepares a start with new code while the job continues with its current code. Sends the new code to the agents,
    /// and waits for at most `wait`. Then keeps a copy of the code. If the job runs in a local folder, checks that Python
    /// can parse the script there.
    pub(super) async fn prepare_push(
        &self,
        name: &JobName,
        patch: JobPatch,
        wait: Duration,
    ) -> Result<KeptCode, JobsError> {
        // If the job is unknown, the later change of its record returns the error.
        let Some(handle) = self.table.find(name).filter(|_| patch.pushes()) else { return Ok(KeptCode::Never) };
        if handle.record.borrow().as_ref().is_some_and(|stored| stored.record.is_over()) {
            return Err(JobsError::TakesNoCode(name.clone()));
        }
        let spec = handle.view.borrow().spec.clone();
        match (patch.code, spec.code) {
            (Some(code), Some(_)) => {
                self.require_code(code, &spec).await?;
                self.stage(&handle, code, wait).await?;
                self.keep_code(code).await
            }
            (Some(_), None) => Err(JobsError::NotPushable(name.clone())),
            (None, Some(_)) => Ok(KeptCode::Never),
            (None, None) if spec.takes_new_code() => {
                self.context.backend.admit(&spec).await?;
                Ok(KeptCode::Never)
            }
            (None, None) => Err(JobsError::NotPushable(name.clone())),
        }
    }

    /// Sends this code to all agents of a job. Waits for at most `wait`. After that, the delivery continues.
    async fn stage(&self, handle: &JobHandle, code: CodeId, wait: Duration) -> Result<(), JobsError> {
        let (progress, staged) = oneshot::channel();
        // A driver that has ended or panicked drops the request. The next driver sends the code before the next start.
        let _ = handle.stagings.send(Staging { code, progress }).await;
        let Ok(mut staged) = staged.await else { return Ok(()) };
        let has_ended = staged.wait_for(|staged| !matches!(staged, Staged::Underway(_)));
        // If the driver ends, the last value stays `Underway`, and the wait ends early.
        let is_late = timeout(wait, has_ended).await.is_err();
        match staged.borrow().clone() {
            Staged::Underway(left) if is_late => {
                Err(JobsError::Underway { name: handle.view.borrow().name.clone(), left })
            }
            Staged::Underway(_) | Staged::Everywhere => Ok(()),
            Staged::Lost => Err(JobsError::Code(CodeError::Missing(code))),
            Staged::Refused(reason) => Err(JobsError::NotStaged(reason)),
        }
    }

    /// Every [`SWEEP_INTERVAL`], removes the code that no job on record may still use. Pauses while a record is
    /// unreadable, because that record may name any code.
    pub(super) async fn sweep_code(self: Arc<Self>) {
        let (mut times, mut sweep) = (interval(SWEEP_INTERVAL), Sweep::default());
        loop {
            times.tick().await;
            if !self.table.all_readable.load(Ordering::Relaxed) {
                continue;
            }
            let (code, used) = (Arc::clone(self.code()), self.codes());
            let swept = spawn_blocking(move || code.sweep(&used, SystemTime::now())).await;
            if let Err(error) = swept.unwrap_or_else(|error| Err(io::Error::other(error))) {
                warn!(%error, "could not remove unused code");
            }
            if let Err(error) = self.sweep_copies(&mut sweep).await {
                warn!(error = error_chain(&error), "could not remove the unused copies of code");
            }
        }
    }

    /// The code that jobs may still use. A job that has ended never starts again. All other jobs keep the code of their
    /// submit, too.
    fn codes(&self) -> BTreeSet<CodeId> {
        let of_record = |stored: &Stored| {
            let record = &stored.record;
            record.ended.is_none().then_some([record.spec.code, record.code])
        };
        self.table.pick(|_, stored| of_record(stored)).into_iter().flatten().flatten().collect()
    }
}
