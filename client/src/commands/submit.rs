//! Submits the current folder's exec.py as a job: to a master that runs, or to one of its own.

use std::time::Duration;

use protocol::job::JobSpec;
use protocol::view::JobView;
use tokio::task::JoinHandle;

use super::{is_json, unless_interrupted};
use crate::args::{Format, SubmitArgs};
use crate::config::{Config, LocalBecause, MasterChoice, variable_to_pass_on};
use crate::error::Error;
use crate::exit::Exit;
use crate::follow::{Following, Logs, Told, follow};
use crate::interrupt::Interrupts;
use crate::local_master::LocalMaster;
use crate::log_stream::From;
use crate::master_client::{MasterClient, Submitted};
use crate::narrate;
use crate::output::{Data, Notes};
use crate::request::{self, RequestError, Surroundings};

/// How long a cancelled job may take to end, before its master is ended, and the job with it.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn run(args: SubmitArgs, config: &Config, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let (format, detach) = (args.format.output, args.detach);
    let folder = std::env::current_dir().map_err(RequestError::NoFolder)?;
    let random = uuid::Uuid::new_v4().into_bytes();
    let surroundings = Surroundings { folder: &folder, random, variable: &variable_to_pass_on };
    let spec = request::job_spec(args, &surroundings)?;
    request::check_script(&folder)?;
    match &config.master {
        MasterChoice::Local(_) if detach => Err(Error::LocalDetached),
        MasterChoice::Local(because) => {
            if *because == LocalBecause::Default {
                notes
                    .say("no --master and no MUSTER_MASTER: running the job on this machine, with a master of its own");
            }
            at_own_master(spec, format, data, notes).await
        }
        MasterChoice::At(url) => {
            let client = MasterClient::new(url.clone(), config.token.as_ref())?;
            if detach {
                hand_over(&client, &spec, format, data, notes).await
            } else {
                let work = submit_and_follow(client.clone(), spec.clone(), format, (data, notes.clone()));
                unless_interrupted(work, (&client, &spec.name), notes).await
            }
        }
    }
}

async fn submit(client: &MasterClient, spec: &JobSpec, notes: &Notes) -> Result<JobView, Error> {
    let submitted = client.submit(spec).await?;
    notes.say(&match &submitted {
        Submitted::New(view) => narrate::accepted(view),
        Submitted::Before(view) => narrate::submitted_before(view),
    });
    let (Submitted::New(view) | Submitted::Before(view)) = submitted;
    Ok(view)
}

/// `--detach`: the job's name is the data, so that a script can go on with it.
async fn hand_over(
    client: &MasterClient,
    spec: &JobSpec,
    format: Format,
    mut data: Data,
    notes: &Notes,
) -> Result<Exit, Error> {
    let view = submit(client, spec, notes).await?;
    let master = client.url();
    notes.say(&format!("to follow it: client logs {} -f --master {master}", view.name));
    if is_json(format) {
        data.json(&view)?;
    } else {
        data.text(view.name.as_str())?;
    }
    Ok(Exit::Done)
}

async fn submit_and_follow(
    client: MasterClient,
    spec: JobSpec,
    format: Format,
    (mut data, notes): (Data, Notes),
) -> Result<Exit, Error> {
    let first = submit(&client, &spec, &notes).await?;
    data.align_prefixes(&first.spec);
    let logs = if is_json(format) { Logs::Hidden } else { Logs::Merged(From::Start) };
    let ended: JobView = follow(Following { client, first, told: Told::Nothing, logs }, &mut data, &notes).await?;
    if is_json(format) {
        data.json(&ended)?;
    }
    Ok(ended.state.into())
}

/// With a master that lives as long as the job. Whatever happens, it is shut down, and what it has started with it.
async fn at_own_master(spec: JobSpec, format: Format, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let mut interrupts = Interrupts::listen().map_err(Error::Runtime)?;
    let mut master = LocalMaster::start()?;
    let outcome = follow_at(&mut master, spec, (format, data, notes), &mut interrupts).await;
    notes.end_progress();
    master.shut_down(&mut interrupts).await;
    outcome
}

async fn follow_at(
    master: &mut LocalMaster,
    spec: JobSpec,
    (format, data, notes): (Format, Data, &Notes),
    interrupts: &mut Interrupts,
) -> Result<Exit, Error> {
    let url = tokio::select! {
        url = master.listening() => url?,
        () = interrupts.next() => return Ok(Exit::NotSucceeded),
    };
    let client = MasterClient::new(url, Some(master.token()))?;
    let name = spec.name.clone();
    // A task of its own, since writing to a slow reader may block it, and an interrupt must be heard even then.
    let mut work = tokio::spawn(submit_and_follow(client.clone(), spec, format, (data, notes.clone())));
    tokio::select! {
        outcome = &mut work => return outcome.expect(NEVER_ABORTED),
        error = master.died() => {
            work.abort();
            return Err(error.into());
        }
        () = interrupts.next() => {}
    }
    notes.end_progress();
    notes.say(&format!("stopping job {name}; interrupt again to end it by force"));
    let outcome = stop(work, client.cancel(&name), interrupts).await;
    outcome.unwrap_or(Ok(Exit::NotSucceeded))
}

const NEVER_ABORTED: &str = "a task that nobody aborts ends by itself, and no code of ours panics";

/// Lets a cancelled job end in order and be followed to its end; nothing when the user or the time cuts that short.
async fn stop(
    mut work: JoinHandle<Result<Exit, Error>>,
    cancel: impl Future<Output = Result<(), crate::master_client::MasterError>>,
    interrupts: &mut Interrupts,
) -> Option<Result<Exit, Error>> {
    let in_order = async {
        match cancel.await {
            Ok(()) => Some((&mut work).await.expect(NEVER_ABORTED)),
            // It may not have been submitted yet, or its master is gone.
            Err(_) => None,
        }
    };
    let outcome = tokio::select! {
        outcome = in_order => outcome,
        () = tokio::time::sleep(CANCEL_TIMEOUT) => None,
        () = interrupts.next() => None,
    };
    work.abort();
    outcome
}
