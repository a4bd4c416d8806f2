//! Checks a job as a submit does, and creates nothing.

use launchers::kubeflow::Read;
use protocol::dry_run::DryRun;
use protocol::job::JobSpec;

use super::error::{JobsError, of_store};
use super::requests::{check_size, in_time, is_same};
use super::{Requests, apply};
use crate::code::CodeError;

/// What a dry run assumes about a job on record with the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldJob {
    /// The old job stays, so another job cannot have its name.
    Stays,
    /// The caller deletes the old job before the submit.
    IsDeletedFirst,
}

impl Requests {
    /// Makes the checks of [`Requests::submit`]. Missing code is no error, because the caller can send the code later.
    pub async fn dry_run(&self, spec: &JobSpec, old: OldJob) -> Result<DryRun, JobsError> {
        in_time(&spec.name, async {
            if old == OldJob::Stays
                && let Some(stored) = self.context.store.get(&spec.name).await.map_err(of_store)?
            {
                is_same(&stored, spec)?;
                return Ok(DryRun { on_record: true, ..DryRun::default() });
            }
            self.check_new(spec).await
        })
        .await
    }

    /// Makes the checks of [`Requests::apply`].
    pub async fn dry_run_of_tfjob(&self, tfjob: &Read) -> Result<DryRun, JobsError> {
        let spec = &tfjob.spec;
        in_time(&spec.name, async {
            match self.context.store.get(&spec.name).await.map_err(of_store)? {
                Some(stored) => {
                    let change = apply::change_of(&stored, tfjob)?;
                    Ok(DryRun { on_record: true, change, ..DryRun::default() })
                }
                None => self.check_new(spec).await,
            }
        })
        .await
    }

    async fn check_new(&self, spec: &JobSpec) -> Result<DryRun, JobsError> {
        check_size(spec)?;
        let lacks_code = match self.code.check_code(spec).await {
            Ok(()) => false,
            Err(JobsError::Code(CodeError::Missing(_))) => true,
            Err(error) => return Err(error),
        };
        let pods = self.context.backend.preview(spec).await?;
        Ok(DryRun { lacks_code, pods, ..DryRun::default() })
    }
}
