//! `delete`: stops a job, deletes its record and output, and returns when its pods are gone. With `--replace`, a submit
//! does the same first.

use std::time::{Duration, Instant};

use protocol::ids::JobName;

use crate::error::Error;
use crate::master_client::MasterClient;
use crate::output::Notes;

/// Maximum time until the job is gone, in addition to the termination grace of its pods. If the job's master is dead,
/// another master ends the job 30 s after the grace. The pods then need time to end.
const LIMIT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_secs(2);

/// Deletes the job with this name, if it exists.
pub(super) async fn delete_if_there(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<(), Error> {
    match delete(client, name, notes).await {
        Err(Error::Master(error)) if error.is_not_found() => Ok(()),
        done => done,
    }
}

/// Deletes the job, and returns when its pods are gone.
pub(super) async fn delete(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<(), Error> {
    let before = match client.view(name).await {
        Ok(view) => Some(view),
        // A record that the master cannot read is not shown as a job, but it can be deleted.
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    client.delete(name).await?;
    let Some(mut view) = before else {
        notes.say(&format!("deleted the unreadable record of job {name}"));
        return Ok(());
    };
    let uid = view.uid.clone();
    let grace = Duration::from_secs(u64::from(view.spec.pod.termination_grace_seconds()));
    let limit = LIMIT + grace;
    let begun = Instant::now();
    while begun.elapsed() < limit {
        view = match client.view_after(name, view.seq, POLL).await {
            Ok(next) if next.uid == uid => next,
            Err(error) if !error.is_not_found() => return Err(error.into()),
            Ok(_) | Err(_) => {
                notes.say(&format!("job {name} is deleted"));
                return Ok(());
            }
        };
    }
    Err(Error::DeleteTimeout { name: name.clone(), after: limit })
}
