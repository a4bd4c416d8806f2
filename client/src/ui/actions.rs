//! What a user can do with a job on the page: for each action, the question to the user and the request to the master.

use protocol::elastic::{BadWorkerNum, WorkerNum};
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::view::{JobState, JobView};

use crate::ending::error::Error;
use crate::follow::replaced;
use crate::masters::upstream::Upstream;
use crate::request::again::{about_code, repeated};

/// An action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageAction {
    Scale,
    Suspend,
    Resume,
    Cancel,
    Rerun,
    Delete,
}

impl PageAction {
    const ALL: [Self; 6] = [Self::Scale, Self::Suspend, Self::Resume, Self::Cancel, Self::Rerun, Self::Delete];

    /// The action with this verb.
    pub(super) fn of_verb(verb: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.verb() == verb)
    }

    /// The verb of the command line that does the same. It is also the text of the button.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Scale => "scale",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Rerun => "rerun",
            Self::Delete => "delete",
        }
    }

    /// What the action does, for the question.
    pub(super) fn effect(self) -> &'static str {
        match self {
            Self::Scale => {
                "The job gets or loses workers. Its scripts start again and continue at their last checkpoint."
            }
            Self::Suspend => "The scripts stop, and the pods are deleted, until you resume the job.",
            Self::Resume => "The job gets pods again, and its scripts start.",
            Self::Cancel => "The scripts stop. The record and the output stay. A cancelled job cannot start again.",
            Self::Rerun => "A new job with the same settings starts, under a new name.",
            Self::Delete => "The scripts stop. The record and the output are deleted.",
        }
    }

    /// The actions that have an effect on this job now. `takes_jobs` says whether a new job can be submitted.
    pub(super) fn possible(view: &JobView, takes_jobs: bool) -> Vec<Self> {
        let has_ended = view.result.is_some();
        let is_suspended = view.state == JobState::Suspended || view.times.suspended.is_some();
        let is_possible = |action: &Self| match action {
            Self::Scale => !has_ended && view.workers.is_some(),
            Self::Suspend => !has_ended && !is_suspended,
            Self::Resume => !has_ended && is_suspended,
            Self::Cancel => !has_ended,
            Self::Rerun => takes_jobs && has_ended && view.spec.origin.is_none() && view.spec.has_code(),
            Self::Delete => true,
        };
        Self::ALL.into_iter().filter(is_possible).collect()
    }

    /// Does the action with the job that the user saw. The user has typed `workers` for [`Self::Scale`]. `task` is the
    /// name of the new job for [`Self::Rerun`]. Returns the job to show after the action, if there is one.
    pub(super) async fn apply(
        self,
        upstream: &Upstream,
        seen: SeenJob,
        (workers, task): (&str, Option<JobName>),
    ) -> Result<Option<JobName>, Error> {
        let SeenJob { job, uid } = seen;
        let client = upstream.of(&job)?;
        let view = client.view(&job).await?;
        if view.uid != uid {
            return Err(replaced(&job));
        }
        let suspended = |is_suspended| JobPatch { suspended: Some(is_suspended), ..JobPatch::default() };
        match self {
            Self::Delete => {
                client.delete(&job, Some(&uid)).await?;
                return Ok(None);
            }
            Self::Rerun if view.result.is_none() => return Err(Error::input(format!("job {job} has not ended"))),
            Self::Rerun => {
                let task = task.ok_or_else(|| Error::input("the form has no name for the new job"))?;
                return run_again(upstream, &view, task).await.map(Some);
            }
            Self::Cancel => client.cancel(&job).await?,
            Self::Suspend => drop(client.patch(&job, suspended(true)).await?),
            Self::Resume => drop(client.patch(&job, suspended(false)).await?),
            Self::Scale => drop(client.patch(&job, scaled(workers)?).await?),
        }
        Ok(Some(job))
    }
}

/// Submits the job with its latest code and number of workers, under the name `task`. Returns this name. Repeated calls
/// submit the job only once.
pub(super) async fn run_again(upstream: &Upstream, before: &JobView, task: JobName) -> Result<JobName, Error> {
    let mut spec = JobSpec::try_from(repeated(before, task)?)?;
    if spec.work_dir.is_some() {
        // The present files of the folder run.
        spec.about.commit = None;
    }
    Ok(upstream.submit(&spec).await.map_err(about_code)?.name)
}

fn scaled(workers: &str) -> Result<JobPatch, Error> {
    let wrong = |error| Error::input(format!("invalid number of workers \"{workers}\": {error}"));
    let WorkerNum { min, max } = workers.trim().parse().map_err(|error: BadWorkerNum| wrong(error))?;
    Ok(JobPatch { worker_min: min, worker_num: Some(max), ..JobPatch::default() })
}

/// The job about which the page has asked. A later job with the same name has another uid.
pub(super) struct SeenJob {
    pub(super) job: JobName,
    pub(super) uid: String,
}
