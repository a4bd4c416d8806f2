//! `status`: shows one job and its replicas.

use super::now;
use crate::args::{Format, StatusArgs};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::master::client::MasterClient;
use crate::output::{Data, status_text};

pub(super) async fn run(client: &MasterClient, args: &StatusArgs, data: &mut Data) -> Result<Exit, Error> {
    let view = client.view(&args.job.name).await?;
    if args.format.output == Format::Json {
        data.json(&view)?;
    } else {
        // Without the progress, the rest of the status is still useful.
        let progress = client.newest_progress(&args.job.name).await.ok();
        data.text(&status_text(&view, progress.as_ref(), now()))?;
    }
    Ok(Exit::Done)
}
