//! The verbs, a file for each. Here: which of them is meant, and what several share.

mod cancel;
mod completions;
mod delete;
mod list;
mod logs;
mod status;
mod submit;
mod wait;

use std::time::{SystemTime, UNIX_EPOCH};

use protocol::ids::{JobName, UnixMillis};

use crate::args::{Format, SubmitArgs, Verb};
use crate::config::{Config, MasterChoice};
use crate::error::Error;
use crate::exit::Exit;
use crate::interrupt::Interrupts;
use crate::master_client::MasterClient;
use crate::output::{Data, Notes};

/// Does what the command line asks for.
pub(crate) async fn run(
    verb: Option<Verb>,
    submit: SubmitArgs,
    config: Config,
    mut data: Data,
    notes: &Notes,
) -> Result<Exit, Error> {
    let client = |verb| remote(&config, verb);
    match verb {
        None => submit::run(submit, &config, data, notes).await,
        Some(Verb::List(format)) => list::run(&client("list")?, format.output, &mut data).await,
        Some(Verb::Status(args)) => status::run(&client("status")?, &args, &mut data).await,
        Some(Verb::Logs(args)) => logs::run(client("logs")?, args, data, notes).await,
        Some(Verb::Wait(args)) => wait::run(&client("wait")?, &args, &mut data, notes).await,
        Some(Verb::Cancel(args)) => cancel::run(&client("cancel")?, &args.name, notes).await,
        Some(Verb::Delete(args)) => delete::run(&client("delete")?, &args.name, notes).await,
        Some(Verb::Completions(args)) => completions::run(args.shell, &mut data),
    }
}

/// The client of a master that runs without this command: a local one knows no job but its own.
fn remote(config: &Config, verb: &'static str) -> Result<MasterClient, Error> {
    match &config.master {
        MasterChoice::At(url) => Ok(MasterClient::new(url.clone(), config.token.as_ref())?),
        MasterChoice::Local(_) => Err(Error::NeedsMaster { verb }),
    }
}

/// The time now, by this machine's clock.
fn now() -> UnixMillis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

/// Does `work` unless the user leaves first, and then says how to come back. The work is a task of its own, since
/// writing to a slow reader may block it, and an interrupt must be heard even then.
async fn unless_interrupted(
    work: impl Future<Output = Result<Exit, Error>> + Send + 'static,
    (client, name): (&MasterClient, &JobName),
    notes: &Notes,
) -> Result<Exit, Error> {
    let mut interrupts = Interrupts::listen().map_err(Error::Runtime)?;
    let mut work = tokio::spawn(work);
    tokio::select! {
        outcome = &mut work => outcome.expect("a task that nobody aborts ends by itself, and no code of ours panics"),
        () = interrupts.next() => {
            work.abort();
            notes.end_progress();
            let master = client.url();
            notes.say(&format!("left job {name}, which goes on"));
            notes.say(&format!("to come back: client logs {name} -f --master {master}"));
            notes.say(&format!("to cancel it: client cancel {name} --master {master}"));
            Ok(Exit::NotSucceeded)
        }
    }
}

/// Whether data are for programs.
fn is_json(format: Format) -> bool {
    match format {
        Format::Json => true,
        Format::Text => false,
    }
}
