//! `list`: shows all jobs of a master, or of all local masters.

use protocol::view::JobList;

use super::now;
use super::which_master::Masters;
use crate::args::Format;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::{Data, jobs_table};

pub(super) async fn run(masters: &Masters, format: Format, data: &mut Data) -> Result<Exit, Error> {
    let list = JobList { jobs: masters.of_all(async |client| Ok(client.list().await?.jobs)).await? };
    if format == Format::Json {
        data.json(&list)?;
    } else {
        data.text(&jobs_table(&list.jobs, now()))?;
    }
    Ok(Exit::Done)
}
