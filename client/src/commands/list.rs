//! `list`: shows all jobs of a master.

use super::now;
use crate::args::Format;
use crate::error::Error;
use crate::exit::Exit;
use crate::master_client::MasterClient;
use crate::output::{Data, jobs_table};

pub(super) async fn run(client: &MasterClient, format: Format, data: &mut Data) -> Result<Exit, Error> {
    let list = client.list().await?;
    if format == Format::Json {
        data.json(&list)?;
    } else {
        data.text(&jobs_table(&list.jobs, now()))?;
    }
    Ok(Exit::Done)
}
