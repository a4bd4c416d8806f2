//! The verbs that show one job and change nothing: `status`, `why`, `timeline`, `stacks`, and `get`, which shows jobs
//! as TFJobs.

use master_client::clock::now;
use master_client::{MasterClient, tfjobs};
use serde_json::json;

use crate::args::{FormatArgs, GetArgs, JobArgs, ObjectFormat};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::masters::finder::ShownJob;
use crate::masters::which_master::Masters;
use crate::output::{Data, Format, stacks_text, status_text, tfjobs_table, timeline_text, why_text, yaml};

/// Approximate number of reports that `status` reads, of all scripts together.
const REPORTS: usize = 2048;

/// One job and its replicas.
pub(super) async fn status(job: ShownJob, format: FormatArgs, data: &mut Data) -> Result<Exit, Error> {
    let progress = match (&job, format.output) {
        (_, Format::Json) => None,
        // Without the progress, the rest of the status is still useful.
        (ShownJob::Present(client, view), Format::Text) => {
            client.progress(&view.name, (REPORTS / view.replicas.len().max(1)).clamp(2, 64)).await.ok()
        }
        (ShownJob::Past(past), Format::Text) => Some(past.series.clone()),
    };
    data.show(format.output, job.view(), || status_text(job.view(), progress.as_ref(), now()))?;
    Ok(Exit::Done)
}

/// Which replica of a job failed first, how, and what followed.
pub(super) fn why(job: &ShownJob, format: FormatArgs, data: &mut Data) -> Result<Exit, Error> {
    data.show(format.output, &job.view().restarts, || why_text(job.view()))?;
    Ok(Exit::Done)
}

/// When a job reached each step, and how its time was spent.
pub(super) async fn timeline(job: ShownJob, format: FormatArgs, data: &mut Data) -> Result<Exit, Error> {
    let timeline = match job {
        ShownJob::Present(client, view) => client.timeline(&view.name).await?,
        ShownJob::Past(past) => past.timeline,
    };
    data.show(format.output, &timeline, || timeline_text(&timeline))?;
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
            let object = tfjobs::show(&masters.of(name)?, name).await?;
            (object.clone(), vec![object])
        }
        None => {
            let items = masters.of_all(async |client| Ok(tfjobs::list(client).await?.items)).await?;
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
