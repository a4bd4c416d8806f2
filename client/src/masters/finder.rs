//! Finds the jobs of verbs: at a master, or in the history of this user if the job's local master has ended.

use master_client::MasterClient;
use protocol::history::{PastJob, PastJobs};
use protocol::ids::JobName;
use protocol::view::JobView;

use super::past::newest;
use super::which_master::Masters;
use crate::address::config::ClientConfig;
use crate::ending::error::Error;
use crate::masters::upstream::Upstream;
use crate::output::Notes;
use crate::output::command_line::command;

/// Finds jobs for one verb: at the masters, or in the history of this user.
pub(crate) struct Finder {
    verb: &'static str,
    config: ClientConfig,
    pub(crate) upstream: Upstream,
}

/// Where a verb finds a job.
pub(crate) enum JobPlace {
    /// This master may have the job.
    Master(MasterClient),
    /// The job was at a local master and has ended.
    History(Box<PastJob>),
}

/// A job that a verb shows.
pub(crate) enum ShownJob {
    /// The job is on record.
    Present(MasterClient, Box<JobView>),
    /// The job has ended, and is in the history.
    Past(Box<PastJob>),
}

impl ShownJob {
    pub(crate) fn view(&self) -> &JobView {
        match self {
            Self::Present(_, view) => view,
            Self::Past(past) => &past.view,
        }
    }
}

impl Finder {
    pub(crate) async fn new(verb: &'static str, config: ClientConfig, notes: &Notes) -> Result<Self, Error> {
        let upstream = Upstream::find(verb, &config, notes).await?;
        Ok(Self { verb, config, upstream })
    }

    /// The place of the job with this name.
    pub(crate) async fn locate(&self, name: &JobName, notes: &Notes) -> Result<JobPlace, Error> {
        if self.upstream.may_have(name) {
            return self.upstream.of(name).map(JobPlace::Master);
        }
        if let Some(uid) = self.upstream.newest_past(name).await {
            return Ok(JobPlace::History(Box::new(self.upstream.past_job(&uid).await?)));
        }
        // No local master has the job. This gives the error that says so.
        Masters::find(self.verb, &self.config, notes).await?.of(name).map(JobPlace::Master)
    }

    /// The job with this name, for a verb that shows it. If it is not on record, the newest job with this name in the
    /// history.
    pub(crate) async fn seen(&self, name: &JobName, notes: &Notes) -> Result<ShownJob, Error> {
        let past = match self.locate(name, notes).await? {
            JobPlace::History(past) => past,
            JobPlace::Master(client) => match client.view(name).await {
                Ok(view) => return Ok(ShownJob::Present(client, Box::new(view))),
                Err(missing) if missing.is_not_found() => {
                    let PastJobs { jobs, .. } = client.history().await.unwrap_or_default();
                    let newest = newest(&jobs, name).ok_or(missing)?;
                    Box::new(client.past_job(&newest.uid).await?)
                }
                Err(error) => return Err(error.into()),
            },
        };
        notes.say(&format!("job {name} is no longer on record; this is from the history"));
        Ok(ShownJob::Past(past))
    }

    /// The master of the job, for a verb without a meaning for a job that has ended.
    pub(crate) async fn on_record(&self, name: &JobName, notes: &Notes) -> Result<MasterClient, Error> {
        match self.locate(name, notes).await? {
            JobPlace::Master(client) => Ok(client),
            JobPlace::History(past) => Err(has_ended(&past.view)),
        }
    }
}

/// The error of a verb whose job has ended together with its local master.
pub(crate) fn has_ended(view: &JobView) -> Error {
    let ended = format!("job {} has ended ({}), and its local master too", view.name, view.state);
    Error::input(ended).hint(command(&format!("why {}", view.name)))
}
