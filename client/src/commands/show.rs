//! The verbs that show jobs and change nothing: `list`, `status`, `why`, `stacks`, and `get`, which shows jobs as TFJobs.

use protocol::view::JobList;
use serde_json::json;

use super::now;
use super::which_master::Masters;
use crate::args::{Format, GetArgs, JobArgs, ObjectFormat};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::master::client::MasterClient;
use crate::output::{Data, jobs_table, stacks_text, status_text, tfjobs_table, why_text, yaml};

/// All jobs of a master, or of all local masters.
pub(super) async fn list(masters: &Masters, format: Format, data: &mut Data) -> Result<Exit, Error> {
    let list = JobList { jobs: masters.of_all(async |client| Ok(client.list().await?.jobs)).await? };
    data.show(format, &list, || jobs_table(&list.jobs, now()))?;
    Ok(Exit::Done)
}

/// How many reports of all scripts together `status` reads.
const REPORTS: usize = 2048;

/// One job and its replicas.
pub(super) async fn status(client: &MasterClient, args: &JobArgs, data: &mut Data) -> Result<Exit, Error> {
    let view = client.view(&args.job.name).await?;
    let progress = match args.format.output {
        Format::Json => None,
        // Without the progress, the rest of the status is still useful.
        Format::Text => client.progress(&args.job.name, (REPORTS / view.replicas.len().max(1)).clamp(2, 64)).await.ok(),
    };
    data.show(args.format.output, &view, || status_text(&view, progress.as_ref(), now()))?;
    Ok(Exit::Done)
}

/// Which replica of a job failed first, how, and what followed.
pub(super) async fn why(client: &MasterClient, args: &JobArgs, data: &mut Data) -> Result<Exit, Error> {
    let view = client.view(&args.job.name).await?;
    data.show(args.format.output, &view.restarts, || why_text(&view))?;
    Ok(Exit::Done)
}

/// Where the scripts of a job are now.
pub(super) async fn stacks(client: &MasterClient, args: &JobArgs, data: &mut Data) -> Result<Exit, Error> {
    let stacks = client.stacks(&args.job.name).await?;
    data.show(args.format.output, &stacks, || stacks_text(&stacks))?;
    Ok(Exit::Done)
}

/// Jobs as the TFJobs that they came from.
pub(super) async fn get(masters: &Masters, args: &GetArgs, data: &mut Data) -> Result<Exit, Error> {
    let (shown, items) = match &args.name {
        Some(name) => {
            let object = masters.of(name)?.tfjob(name).await?;
            (object.clone(), vec![object])
        }
        None => {
            let items = masters.of_all(async |client| Ok(client.tfjobs().await?.items)).await?;
            (json!({ "apiVersion": "v1", "kind": "List", "items": items }), items)
        }
    };
    match args.output {
        ObjectFormat::Table => data.text(&tfjobs_table(&items, now()))?,
        ObjectFormat::Json => data.json(&shown)?,
        ObjectFormat::Yaml => data.text(&yaml(&shown))?,
    }
    Ok(Exit::Done)
}
