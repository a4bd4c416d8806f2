//! `wait`: returns when jobs have ended; the exit status reflects their results.

use std::time::{Duration, Instant};

use protocol::ids::JobName;
use protocol::view::JobView;
use serde_json::json;

use super::leaving::{Stage, unless_interrupted};
use super::several::{Outcomes, distinct, each};
use super::which_master::Masters;
use crate::args::{Format, WaitArgs};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::follow::{replaced, tell_cause};
use crate::master::client::{LONG_POLL, MasterClient};
use crate::master::patience::Patience;
use crate::output::narrate;
use crate::output::{Data, Notes, spelled};

pub(super) async fn run(masters: Masters, mut args: WaitArgs, data: Data, notes: &Notes) -> Result<Exit, Error> {
    args.jobs.names = distinct(&args.jobs.names);
    let names = args.jobs.names.clone();
    let work = wait_for_all(masters, args, (data, notes.clone()));
    unless_interrupted(work, &names, || Stage::Waiting, notes).await
}

async fn wait_for_all(masters: Masters, args: WaitArgs, (mut data, notes): (Data, Notes)) -> Result<Exit, Error> {
    let limit = Limit { begun: Instant::now(), timeout: args.timeout };
    let masters = &masters;
    let waits = each(&args.jobs.names, &notes, |name| {
        let notes = notes.clone();
        async move { wait(&masters.of(&name)?, &name, limit, &notes).await }
    });
    let Outcomes { done, failed } = waits.await?;
    let exit = done.iter().map(|view| Exit::from(view.state)).max().unwrap_or(Exit::Done).max(failed);
    match (args.format.output, done.as_slice(), args.jobs.names.as_slice()) {
        (Format::Text, _, _) => {}
        (Format::Json, [view], [_]) => data.json(view)?,
        (Format::Json, _, _) => data.json(&json!({ "jobs": done }))?,
    }
    Ok(exit)
}

/// When a wait is given up.
#[derive(Debug, Clone, Copy)]
struct Limit {
    begun: Instant,
    timeout: Option<Duration>,
}

impl Limit {
    /// The time left. `None` without a timeout.
    fn left(self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.begun.elapsed()))
    }
}

/// Waits for the end of a job, and prints its result.
async fn wait(client: &MasterClient, name: &JobName, limit: Limit, notes: &Notes) -> Result<JobView, Error> {
    let mut view = client.view(name).await?;
    let mut patience = Patience::of_observer();
    while view.result.is_none() {
        let left = limit.left();
        if left == Some(Duration::ZERO) {
            return Err(too_late(&view, limit.timeout));
        }
        // The master waits whole seconds, so the client itself ends the wait at the exact timeout.
        let poll = client.view_after(&view.name, view.seq, left.map_or(LONG_POLL, round_up));
        let next = match left {
            Some(left) => tokio::time::timeout(left, poll).await,
            None => Ok(poll.await),
        };
        match next {
            Ok(Ok(next)) if next.uid != view.uid => return Err(replaced(&view.name)),
            Ok(Ok(next)) => {
                patience.restore();
                view = next;
            }
            Ok(Err(error)) => patience.wait_after(error).await?,
            Err(_) => return Err(too_late(&view, limit.timeout)),
        }
    }
    let view = view.as_ended().expect("the loop ends with a result");
    notes.say(&format!("job {name} {}", narrate::closing(&view)));
    tell_cause(&view, notes);
    Ok(view)
}

fn round_up(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs().saturating_add(1))
}

fn too_late(view: &JobView, timeout: Option<Duration>) -> Error {
    let (name, state, after) = (&view.name, view.state, spelled(timeout.unwrap_or_default()));
    Error::unsuccessful(format!("job {name} is still {state} after {after}"))
}
