//! `cancel`: stops a job and keeps its record. A job that has ended is not changed.

use master_client::MasterClient;
use protocol::ids::JobName;
use protocol::view::{JobState, JobView};

use super::several;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::masters::finder::{Finder, JobPlace};
use crate::output::Notes;
use crate::output::command_line::command;

pub(super) async fn run(finder: &Finder, names: &[JobName], notes: &Notes) -> Result<Exit, Error> {
    let outcomes = several::each(names, notes, |name| async move {
        match finder.locate(&name, notes).await? {
            JobPlace::Master(client) => cancel(&client, &name, notes).await,
            JobPlace::History(past) => {
                notes.say(&already_ended(&name, past.view.state));
                Ok(())
            }
        }
    });
    Ok(outcomes.await?.failed)
}

fn already_ended(name: &JobName, state: JobState) -> String {
    format!("job {name} has already ended ({state}); nothing was done")
}

async fn cancel(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<(), Error> {
    match client.view(name).await {
        Ok(JobView { result: Some(result), .. }) => {
            notes.say(&already_ended(name, result.state()));
            return Ok(());
        }
        Ok(_) => {}
        // The job may have a record that the master cannot read. The cancel then fails with the reason.
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    client.cancel(name).await?;
    let wait = command(&format!("wait {name}"));
    notes.say(&format!("job {name} is being cancelled; to wait until the job has stopped: {wait}"));
    Ok(())
}
