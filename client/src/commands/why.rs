//! `why`: shows which replica of a job failed first, how, and what followed.

use crate::args::{Format, WhyArgs};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::master::client::MasterClient;
use crate::output::{Data, why_text};

pub(super) async fn run(client: &MasterClient, args: &WhyArgs, data: &mut Data) -> Result<Exit, Error> {
    let view = client.view(&args.job.name).await?;
    if args.format.output == Format::Json {
        data.json(&view.restarts)?;
    } else {
        data.text(&why_text(&view))?;
    }
    Ok(Exit::Done)
}
