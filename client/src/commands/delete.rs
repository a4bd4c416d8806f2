//! `delete`: stops a job, deletes its record and output, and returns when its pods are gone. With `--replace`, a submit
//! does the same first.

use std::time::{Duration, Instant};

use master_client::{MasterClient, MasterError};
use protocol::deletion::Deletion;
use protocol::ids::JobName;

use crate::ending::error::{Cause, Error};
use crate::master::patience::persist;
use crate::output::{Notes, spelled};

/// Maximum time until the job is gone, in addition to the termination grace of its pods. If the job's master is dead,
/// another master waits 30 s longer than the grace before it deletes the job. Then the pods need time to end.
const LIMIT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_secs(2);

/// Deletes the job with this name, if it exists.
pub(super) async fn delete_if_there(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<(), Error> {
    match delete(client, name, notes).await {
        Err(Error { cause: Cause::Master(error), .. }) if error.is_not_found() => Ok(()),
        done => done,
    }
}

/// Deletes the job, and returns when its pods are gone. Waits for a master that is away.
pub(super) async fn delete(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<(), Error> {
    let before = found(persist(notes, || client.view(name)).await)?;
    let uid = before.as_ref().map(|view| view.uid.clone());
    // A repeated request may arrive when a new job already has this name. The uid protects the new job.
    let accepted = persist(notes, || client.delete(name, uid.as_deref())).await;
    let Some(mut view) = before else {
        // A record that the master cannot read is not shown as a job, but it can be deleted.
        accepted?;
        notes.say(&format!("deleted the unreadable record of job {name}"));
        return Ok(());
    };
    // If the answer to the first request was lost, the repeated request may find that the job is gone.
    let Deletion { written_files } = found(accepted)?.unwrap_or_default();
    if let (1.., Some(folder)) = (written_files, &view.folder) {
        let files = if written_files == 1 { "file" } else { "files" };
        notes.say(&format!("job {name}: also deleting {written_files} {files} of its scripts in {}", folder.display()));
    }
    let uid = view.uid.clone();
    let grace = Duration::from_secs(u64::from(view.spec.pod.termination_grace_seconds()));
    let limit = LIMIT + grace;
    let begun = Instant::now();
    while begun.elapsed() < limit {
        view = match found(persist(notes, || client.view_after(name, view.seq, POLL)).await)? {
            Some(next) if next.uid == uid => next,
            Some(_) | None => {
                notes.say(&format!("job {name} is deleted"));
                return Ok(());
            }
        };
    }
    let after = spelled(limit);
    Err(Error::unsuccessful(format!("job {name} still exists after {after}; the master continues to delete it")))
}

/// The answer about a job. `None` if there is no such job.
fn found<T>(answer: Result<T, MasterError>) -> Result<Option<T>, MasterError> {
    match answer {
        Err(error) if error.is_not_found() => Ok(None),
        answer => answer.map(Some),
    }
}
