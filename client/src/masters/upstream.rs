//! The masters that the page asks, and the history of the user.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use history::{History, is_uid};
use master_client::{MasterClient, MasterError};
use protocol::history::{PastJob, PastJobs};
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::view::{JobList, JobSummary, JobView};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::address::config::{ClientConfig, MasterChoice};
use crate::ending::error::Error;
use crate::masters::past;
use crate::masters::which_master::{Masters, running};
use crate::output::{Notes, differences};
use crate::request::again::last_spec;

/// Pause between two requests to local masters for their jobs.
const LIST_PERIOD: Duration = Duration::from_secs(1);

/// Where the jobs of the page are.
pub(crate) enum Upstream {
    /// At the master that the user names.
    Fixed(Masters),
    /// At the local masters that run at the time of a request, and in the history of this user.
    Local {
        /// The folders with the files of the local masters.
        run_folders: Vec<PathBuf>,
        history: Option<History>,
    },
}

impl Upstream {
    /// The masters that this command asks.
    pub(crate) async fn find(verb: &'static str, config: &ClientConfig, notes: &Notes) -> Result<Self, Error> {
        match &config.master {
            MasterChoice::Local(_) => {
                running(&config.run_folders, notes);
                Ok(Self::Local { run_folders: config.run_folders.clone(), history: past::of_user(config) })
            }
            MasterChoice::At(_) | MasterChoice::Kube(_) => Ok(Self::Fixed(Masters::find(verb, config, notes).await?)),
        }
    }

    /// A client of the master that has this job.
    pub(crate) fn of(&self, name: &JobName) -> Result<MasterClient, Error> {
        self.masters().of(name)
    }

    /// All jobs on record, when one of them has changed since `seq`, or unchanged after `wait`.
    pub(crate) async fn list_after(&self, seq: u64, wait: Duration) -> Result<JobList, MasterError> {
        match self {
            Self::Fixed(Masters::One(client)) => client.list_after(seq, wait).await,
            Self::Fixed(Masters::Local(_)) | Self::Local { .. } => {
                // Local masters begin and end at any time, so this looks for them again after the pause.
                sleep(LIST_PERIOD.min(wait)).await;
                self.list().await
            }
        }
    }

    /// All jobs on record.
    pub(crate) async fn list(&self) -> Result<JobList, MasterError> {
        self.masters().list().await
    }

    /// The jobs of the history that are not among `present`. Files that cannot be read are left out;
    /// `client list --all` names them.
    pub(crate) async fn ended(&self, present: &[JobSummary]) -> Result<Vec<JobSummary>, Error> {
        Ok(self.all_ended(present).await?.jobs)
    }

    /// Like [`Self::ended`], with the files that cannot be read.
    pub(crate) async fn all_ended(&self, present: &[JobSummary]) -> Result<PastJobs, Error> {
        past::ended(&self.masters(), self.history(), present).await
    }

    /// The job with this uid in the history.
    pub(crate) async fn past_job(&self, uid: &str) -> Result<PastJob, Error> {
        let unknown = || Error::input(format!("the history has no job with the uid {uid}"));
        match self {
            Self::Fixed(Masters::One(client)) if is_uid(uid) => Ok(client.past_job(uid).await?),
            Self::Fixed(_) => Err(unknown()),
            Self::Local { history, .. } => {
                let (history, uid) = (history.clone(), uid.to_owned());
                let read = move || history.map(|history| history.read(&uid)).transpose();
                let found = spawn_blocking(read).await.map_err(io::Error::other).flatten();
                found.map_err(|error| Error::input("read the history").because(error))?.flatten().ok_or_else(unknown)
            }
        }
    }

    /// The uid of the newest job with this name in the history.
    pub(crate) async fn newest_past(&self, name: &JobName) -> Option<String> {
        let past = self.ended(&[]).await.ok()?;
        past::newest(&past, name).map(|job| job.uid.clone())
    }

    /// See [`Masters::may_have`].
    pub(crate) fn may_have(&self, name: &JobName) -> bool {
        self.masters().may_have(name)
    }

    /// Whether the jobs are at local masters, which end with their jobs.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Local { .. })
    }

    /// The newest earlier run of the same source, among the jobs on record and in the history. `None` also if the
    /// source is unknown.
    pub(crate) async fn run_before(&self, view: &JobView, present: &[JobSummary]) -> Result<Option<Before>, Error> {
        let past = self.ended(present).await?;
        let Some(newest) = newest_before(view, present.iter().chain(&past)) else { return Ok(None) };
        let is_past = past.iter().any(|job| job.uid == newest.uid);
        let before = match is_past {
            true => self.past_job(&newest.uid).await?.view,
            false => self.of(&newest.name)?.view(&newest.name).await?,
        };
        let differences = differences(&last_spec(&before), &last_spec(view));
        Ok(Some(Before { name: newest.name.to_string(), path: path(&newest.name, &newest.uid, is_past), differences }))
    }

    /// Whether a master takes new jobs from the page. A local master has only the job of the command that started it.
    pub(crate) fn takes_jobs(&self) -> bool {
        matches!(self, Self::Fixed(Masters::One(_)))
    }

    /// Submits a job.
    pub(crate) async fn submit(&self, spec: &JobSpec) -> Result<JobView, Error> {
        match self {
            Self::Fixed(Masters::One(client)) => Ok(client.submit(spec).await?.view().clone()),
            Self::Fixed(Masters::Local(_)) | Self::Local { .. } => {
                Err(Error::input("a local master takes no further job"))
            }
        }
    }

    /// The place of the jobs, as the page shows it.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Fixed(Masters::One(client)) => client.url().to_string(),
            Self::Fixed(Masters::Local(_)) | Self::Local { .. } => "local masters".to_owned(),
        }
    }

    /// The masters to ask now.
    pub(crate) fn masters(&self) -> Masters {
        match self {
            Self::Fixed(masters) => masters.clone(),
            Self::Local { run_folders, .. } => Masters::running_now(run_folders),
        }
    }

    fn history(&self) -> Option<&History> {
        match self {
            Self::Fixed(_) => None,
            Self::Local { history, .. } => history.as_ref(),
        }
    }
}

/// An earlier run of the same source.
#[derive(Clone)]
pub(crate) struct Before {
    pub(crate) name: String,
    /// The path of its page, relative to the list.
    pub(crate) path: String,
    /// How the later run differs.
    pub(crate) differences: Vec<String>,
}

/// The path of a job's page, relative to the list.
pub(crate) fn path(name: &JobName, uid: &str, is_past: bool) -> String {
    if is_past { format!("history/{uid}") } else { format!("jobs/{name}") }
}

/// The job that was accepted last before this one, among those with the same source. A job with the same name comes
/// first.
fn newest_before<'a>(view: &JobView, all: impl Iterator<Item = &'a JobSummary>) -> Option<&'a JobSummary> {
    let (source, accepted) = (view.spec.about.source.as_ref()?, view.times.accepted?);
    let earlier = all.filter(|job| {
        job.uid != view.uid
            && job.source.as_ref() == Some(source)
            && job.times.accepted.is_some_and(|at| at <= accepted)
    });
    earlier.max_by_key(|job| (job.name == view.name, job.times.accepted))
}
