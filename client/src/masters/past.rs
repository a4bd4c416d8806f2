//! Jobs that have ended and are no longer on record: the history of the master, and for local masters the history of
//! this user.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use history::History;
use master_client::{MasterClient, MasterError};
use protocol::history::{PastJob, PastJobs};
use protocol::ids::JobName;
use protocol::view::{JobSummary, JobView};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::which_master::Masters;
use crate::address::config::{ClientConfig, MasterChoice};
use crate::ending::error::Error;
use crate::output::Notes;

/// Maximum time from a job's end until its local master has written the job to the history, and the pause between two
/// requests for the job.
const KEEP_TIMEOUT: Duration = Duration::from_secs(3);
const KEEP_PAUSE: Duration = Duration::from_millis(20);

/// The job with this name that was accepted last.
pub(crate) fn newest<'a>(jobs: &'a [JobSummary], name: &JobName) -> Option<&'a JobSummary> {
    jobs.iter().filter(|job| job.name == *name).max_by_key(|job| job.times.accepted)
}

/// The history of this user, if the command asks local masters.
pub(crate) fn of_user(config: &ClientConfig) -> Option<History> {
    match config.master {
        MasterChoice::Local(_) => config.history.clone().map(History::at),
        MasterChoice::At(_) | MasterChoice::Kube(_) => None,
    }
}

/// The jobs in the histories of these masters and of this user that are not among `present`.
pub(crate) async fn ended(masters: &Masters, own: Option<&History>, present: &[JobSummary]) -> Result<PastJobs, Error> {
    let mut lists = masters.of_all(async |client| Ok(vec![client.history().await?])).await?;
    if let Some(history) = own.cloned() {
        let list = spawn_blocking(move || history.list()).await.map_err(io::Error::other).flatten();
        lists.push(list.map_err(|error| Error::input("read the history").because(error))?);
    }
    let mut known: HashSet<String> = present.iter().map(|job| job.uid.clone()).collect();
    let mut all = PastJobs::default();
    for PastJobs { jobs, skipped } in lists {
        all.jobs.extend(jobs.into_iter().filter(|job| known.insert(job.uid.clone())));
        all.skipped.extend(skipped);
    }
    Ok(all)
}

/// The jobs of an earlier list that are no longer on record.
pub(crate) fn gone<'a>(before: &'a [JobSummary], now: &[JobSummary]) -> Vec<&'a JobSummary> {
    let present: HashSet<&str> = now.iter().map(|job| job.uid.as_str()).collect();
    before.iter().filter(|job| !present.contains(job.uid.as_str())).collect()
}

/// Keeps the job of a local master in the history of this user. The master's own files are removed when the master
/// ends.
pub(crate) async fn keep(client: &MasterClient, name: &JobName, config: &ClientConfig, notes: &Notes) {
    let Some(history) = config.history.clone().map(History::at) else { return };
    let Ok(JobView { uid, result: Some(_), .. }) = client.view(name).await else { return };
    let kept = match timeout(KEEP_TIMEOUT, past_job(client, &uid)).await {
        Ok(Ok(past)) => history.keep(&past).map_err(|error| error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the master did not write it in time".to_owned()),
    };
    if let Err(reason) = kept {
        notes.say(&format!("the history lacks job {name}: {reason}"));
    }
}

/// The job with this uid in the master's history. Waits until the master has written the job, which is a moment after
/// the result.
async fn past_job(client: &MasterClient, uid: &str) -> Result<PastJob, MasterError> {
    loop {
        match client.past_job(uid).await {
            Err(error) if error.is_not_found() => sleep(KEEP_PAUSE).await,
            outcome => return outcome,
        }
    }
}
