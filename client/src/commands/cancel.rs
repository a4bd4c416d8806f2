//! `cancel`: stops a job and keeps its record.

use protocol::ids::JobName;

use crate::error::Error;
use crate::exit::Exit;
use crate::master_client::MasterClient;
use crate::output::Notes;

pub(super) async fn run(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<Exit, Error> {
    client.cancel(name).await?;
    notes.say(&format!("job {name} is being cancelled; client wait {name} returns when nothing of it runs"));
    Ok(Exit::Done)
}
