//! `cancel`: stops a job and keeps its record. One that has ended is left as it is.

use protocol::ids::JobName;
use protocol::view::JobView;

use crate::error::Error;
use crate::exit::Exit;
use crate::master_client::MasterClient;
use crate::output::Notes;

pub(super) async fn run(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<Exit, Error> {
    match client.view(name).await {
        Ok(JobView { result: Some(result), .. }) => {
            notes.say(&format!("job {name} has ended already ({}); nothing was done", result.state()));
            return Ok(Exit::Done);
        }
        Ok(_) => {}
        // A record that the master cannot read is no job to show, and only who wants it cancelled is told why.
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    client.cancel(name).await?;
    notes.say(&format!("job {name} is being cancelled; client wait {name} returns when nothing of it runs"));
    Ok(Exit::Done)
}
