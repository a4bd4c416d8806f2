//! Accepts jobs from files that users may apply again: TFJobs.

use launchers::kubeflow::{Read, difference, what_differs};
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::origin::Origin;
use protocol::patch::JobPatch;
use tracing::info;

use super::error::{JobsError, of_store};
use super::requests::in_time;
use super::{Requests, Submitted};
use crate::store::{Stored, Wish};

/// The outcome of a TFJob that was applied.
#[derive(Debug)]
pub struct Applied {
    /// The job.
    pub submitted: Submitted,
    /// The change that the TFJob made to a job that was already on record.
    pub change: JobPatch,
}

impl Requests {
    /// Accepts the job of a TFJob. If the job is already on record, suspends, resumes or scales it to match the TFJob.
    ///
    /// # Errors
    /// [`JobsError::Exists`] or [`JobsError::OtherTfJob`] if another job has this name, [`JobsError::OtherCode`] or
    /// [`JobsError::EndedTfJob`] if only the code differs, and the errors of [`Requests::submit`] and [`Requests::patch`].
    pub async fn apply(&self, tfjob: Read) -> Result<Applied, JobsError> {
        let name = tfjob.spec.name.clone();
        let found = in_time(&name, async { self.context.store.get(&name).await.map_err(of_store) }).await?;
        match found {
            Some(stored) => self.apply_again(stored, &tfjob).await,
            None => {
                let submitted = in_time(&name, self.put_on_record(tfjob.spec, tfjob.is_suspended)).await?;
                Ok(Applied { submitted, change: JobPatch::default() })
            }
        }
    }

    /// Whether a record has this name.
    ///
    /// # Errors
    /// [`JobsError::Store`], [`JobsError::Late`], and [`JobsError::Unreadable`] or [`JobsError::OtherFormat`] if the
    /// record cannot be read.
    pub async fn is_on_record(&self, name: &JobName) -> Result<bool, JobsError> {
        let stored = in_time(name, async { self.context.store.get(name).await.map_err(of_store) }).await?;
        Ok(stored.is_some())
    }

    async fn apply_again(&self, stored: Stored, tfjob: &Read) -> Result<Applied, JobsError> {
        let name = &tfjob.spec.name;
        let change = change_of(&stored, tfjob)?;
        if change != JobPatch::default() {
            info!(job = %name, "a TFJob that was applied again changes its job");
            self.patch(name, change).await?;
        }
        let handle = in_time(name, self.arrived(&stored)).await?;
        Ok(Applied { submitted: Submitted::Existing(handle), change })
    }
}

/// The change that a TFJob makes to the job on record. A job that has ended does not change.
///
/// # Errors
/// The errors of [`other_size`].
pub(super) fn change_of(stored: &Stored, tfjob: &Read) -> Result<JobPatch, JobsError> {
    let record = &stored.record;
    let mut patch = other_size(stored, &tfjob.spec)?;
    if record.suspension.since.is_some() != tfjob.is_suspended {
        patch.suspended = Some(tfjob.is_suspended);
    }
    Ok(if record.is_over() { JobPatch::default() } else { patch })
}

/// The change of the job's number of workers.
///
/// # Errors
/// [`JobsError::Exists`], [`JobsError::OtherTfJob`], [`JobsError::OtherCode`] or [`JobsError::EndedTfJob`] if the TFJob
/// describes another job.
fn other_size(stored: &Stored, spec: &JobSpec) -> Result<JobPatch, JobsError> {
    let record = &stored.record;
    let name = || record.spec.name.clone();
    if record.wish == Wish::Delete || !matches!(record.spec.origin, Some(Origin::TfJob(_))) {
        return Err(JobsError::Exists(name()));
    }
    match difference(&record.spec, record.workers(), spec) {
        Some(patch) if record.code() == spec.code => Ok(patch),
        Some(_) if record.is_over() => Err(JobsError::EndedTfJob(name())),
        Some(_) => Err(JobsError::OtherCode(name())),
        None => Err(JobsError::OtherTfJob { name: name(), difference: what_differs(&record.spec, spec) }),
    }
}
