//! `wait`: returns when jobs have ended; the exit status reflects their results.

use std::time::{Duration, Instant};

use master_client::MasterClient;
use protocol::ids::JobName;
use protocol::view::JobView;
use serde_json::json;

use super::leaving::{Stage, unless_interrupted};
use super::notify::{self, Notifier};
use super::several::{Outcomes, distinct, each};
use crate::address::config::ClientConfig;
use crate::args::WaitArgs;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::follow::{tell_cause, until};
use crate::masters::finder::{Finder, JobPlace};
use crate::output::{Data, Format, Notes, narrate, spelled};

pub(super) async fn run(
    finder: Finder,
    mut args: WaitArgs,
    config: &ClientConfig,
    data: Data,
    notes: &Notes,
) -> Result<Exit, Error> {
    args.jobs.names = distinct(&args.jobs.names);
    let names = args.jobs.names.clone();
    let address = notify::address(args.notify.take(), args.notify_file.take(), config)?;
    let notifier = address.map(|url| Notifier::new(url, notes.clone())).transpose()?;
    let work = wait_for_all(finder, args, notifier, data, notes.clone());
    unless_interrupted(work, &names, || Stage::Waiting, notes).await
}

async fn wait_for_all(
    finder: Finder,
    args: WaitArgs,
    notifier: Option<Notifier>,
    mut data: Data,
    notes: Notes,
) -> Result<Exit, Error> {
    let (begun, finder, shared) = (Instant::now(), &finder, notifier.as_ref());
    let waits = each(&args.jobs.names, &notes, |name| {
        let notes = notes.clone();
        async move {
            let view = match finder.locate(&name, &notes).await? {
                JobPlace::Master(client) => wait(&client, &name, (begun, args.timeout), shared).await?,
                JobPlace::History(past) => {
                    shared.inspect(|notifier| notifier.tell(None, &past.view));
                    past.view
                }
            };
            notes.say(&format!("job {name} {}", narrate::closing(&view)));
            tell_cause(&view, &notes);
            Ok(view)
        }
    });
    let outcomes = waits.await;
    if let Some(notifier) = notifier {
        notifier.complete().await;
    }
    let Outcomes { done, failed } = outcomes?;
    let exit = done.iter().map(|view| Exit::from(view.state)).max().unwrap_or(Exit::Done).max(failed);
    match (args.format.output, done.as_slice(), args.jobs.names.as_slice()) {
        (Format::Text, _, _) => {}
        (Format::Json, [view], [_]) => data.json(view)?,
        (Format::Json, _, _) => data.json(&json!({ "jobs": done }))?,
    }
    Ok(exit)
}

/// Waits for the end of a job.
async fn wait(
    client: &MasterClient,
    name: &JobName,
    (begun, timeout): (Instant, Option<Duration>),
    notifier: Option<&Notifier>,
) -> Result<JobView, Error> {
    let mut view = client.view(name).await?;
    let mut before: Option<JobView> = None;
    let has_ended = |view: &JobView| {
        if let Some(notifier) = notifier {
            notifier.tell(before.replace(view.clone()).as_ref(), view);
        }
        view.result.is_some()
    };
    let ended = until(client, &mut view, has_ended, |_| ());
    match timeout {
        None => ended.await?,
        Some(timeout) => {
            let in_time = tokio::time::timeout(timeout.saturating_sub(begun.elapsed()), ended).await;
            let late = |_| format!("job {name} is still {} after {}", view.state, spelled(timeout));
            in_time.map_err(late).map_err(Error::unsuccessful)??;
        }
    }
    Ok(view.as_ended().expect("the wait ends with a result"))
}
