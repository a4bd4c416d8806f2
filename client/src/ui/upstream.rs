//! The masters that the page asks.

use std::path::PathBuf;

use protocol::ids::JobName;
use protocol::view::JobSummary;

use crate::commands::which_master::Masters;
use crate::ending::error::Error;
use crate::master::client::MasterClient;

/// Where the jobs of the page are.
pub(crate) enum Upstream {
    /// At the master that the user names.
    Fixed(Masters),
    /// At the local masters that run at the time of a request. Their files are in these folders.
    Local(Vec<PathBuf>),
}

impl Upstream {
    /// A client of the master that has this job.
    pub(crate) fn of(&self, name: &JobName) -> Result<MasterClient, Error> {
        self.masters().of(name)
    }

    /// All jobs, ordered by name.
    pub(crate) async fn list(&self) -> Result<Vec<JobSummary>, Error> {
        let mut jobs = self.masters().of_all(async |client| Ok(client.list().await?.jobs)).await?;
        jobs.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(jobs)
    }

    /// The place of the jobs, as the page shows it.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Fixed(Masters::One(client)) => client.url().to_string(),
            Self::Fixed(Masters::Local(_)) | Self::Local(_) => "local masters".to_owned(),
        }
    }

    fn masters(&self) -> Masters {
        match self {
            Self::Fixed(masters) => masters.clone(),
            Self::Local(folders) => Masters::running_now(folders),
        }
    }
}
