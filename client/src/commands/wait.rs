//! `wait`: returns when a job has ended; the exit status reflects its result.

use std::time::{Duration, Instant};

use protocol::view::JobView;

use super::leaving::{Stage, unless_interrupted};
use crate::args::{Format, WaitArgs};
use crate::error::Error;
use crate::exit::Exit;
use crate::follow::tell_end;
use crate::master_client::{LONG_POLL, MasterClient};
use crate::output::{Data, Notes};
use crate::patience::Patience;

pub(super) async fn run(client: MasterClient, args: WaitArgs, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let name = args.job.name.clone();
    let work = wait(client.clone(), args, (data, notes.clone()));
    unless_interrupted(work, (&client, &name), || Stage::Waiting, notes).await
}

async fn wait(client: MasterClient, args: WaitArgs, (mut data, notes): (Data, Notes)) -> Result<Exit, Error> {
    let begun = Instant::now();
    let mut view = client.view(&args.job.name).await?;
    let mut patience = Patience::of_observer();
    while view.result.is_none() {
        let left = args.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        if left == Some(Duration::ZERO) {
            return Err(too_late(&view, args.timeout));
        }
        // The master waits whole seconds, so the client itself ends the wait at the exact timeout.
        let poll = client.view_after(&view.name, view.seq, left.map_or(LONG_POLL, round_up));
        let next = match left {
            Some(left) => tokio::time::timeout(left, poll).await,
            None => Ok(poll.await),
        };
        match next {
            Ok(Ok(next)) if next.uid != view.uid => return Err(Error::Replaced(view.name)),
            Ok(Ok(next)) => {
                patience.restore();
                view = next;
            }
            Ok(Err(error)) => patience.wait_after(error).await?,
            Err(_) => return Err(too_late(&view, args.timeout)),
        }
    }
    let view = view.as_ended().expect("the loop ends with a result");
    tell_end(&view, &notes);
    if args.format.output == Format::Json {
        data.json(&view)?;
    }
    Ok(view.state.into())
}

fn round_up(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs().saturating_add(1))
}

fn too_late(view: &JobView, timeout: Option<Duration>) -> Error {
    Error::WaitTimeout { name: view.name.clone(), state: view.state, after: timeout.unwrap_or_default() }
}
