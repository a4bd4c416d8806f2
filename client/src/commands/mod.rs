//! The verbs, and the code that several verbs share. This file calls the function of the verb.

mod apply;
mod ask;
mod bring;
mod build;
mod cancel;
mod completions;
mod delete;
mod doctor;
mod env;
mod get;
mod install;
mod leaving;
mod list;
mod logs;
mod machines;
mod push;
mod pushing;
mod scale;
mod spawn;
mod status;
mod submit;
mod syntax;
mod uninstall;
mod wait;
mod watch;
mod which_master;
mod why;

use std::time::{SystemTime, UNIX_EPOCH};

use protocol::ids::UnixMillis;

use crate::args::{ConnectionArgs, SubmitArgs, Verb};
use crate::config::Config;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::{Data, Notes};

/// Runs the command.
pub(crate) async fn run(
    verb: Option<Verb>,
    submit: SubmitArgs,
    connection: ConnectionArgs,
    mut data: Data,
    notes: &Notes,
) -> Result<Exit, Error> {
    // Read the configuration only when it is needed: a wrong address must not fail a command that uses no master.
    let config = || Config::read(connection.clone());
    let client = async |verb| which_master::client_for(verb, &config()?, notes).await;
    match verb {
        None => submit::run(submit, &config()?, data, notes).await,
        Some(Verb::List(format)) => list::run(&client("list").await?, format.output, &mut data).await,
        Some(Verb::Status(args)) => status::run(&client("status").await?, &args, &mut data).await,
        Some(Verb::Why(args)) => why::run(&client("why").await?, &args, &mut data).await,
        Some(Verb::Logs(args)) => logs::run(client("logs").await?, args, data, notes).await,
        Some(Verb::Apply(args)) => apply::run(args, &config()?, data, notes).await,
        Some(Verb::Spawn(args)) => spawn::run(args, &config()?, data, notes).await,
        Some(Verb::Get(args)) => get::run(&client("get").await?, &args, &mut data).await,
        Some(Verb::Wait(args)) => wait::run(client("wait").await?, args, data, notes).await,
        Some(Verb::Scale(args)) => scale::run(&client("scale").await?, &args.job.name, args.worker_num, notes).await,
        Some(Verb::Push(args)) => push::run(client("push").await?, args, notes).await,
        Some(Verb::Suspend(args)) => scale::suspend(&client("suspend").await?, &args.name, notes).await,
        Some(Verb::Resume(args)) => scale::resume(&client("resume").await?, &args.name, notes).await,
        Some(Verb::Cancel(args)) => cancel::run(&client("cancel").await?, &args.name, notes).await,
        Some(Verb::Delete(args)) => delete::run(&client("delete").await?, &args.name, notes).await,
        Some(Verb::Build(args)) => build::run(args, &config()?, &mut data, notes).await,
        Some(Verb::Env(args)) => env::run(args.unset, &mut data, notes).await,
        Some(Verb::Install(args)) => install::run(args, &config()?, (&mut data, notes)).await,
        Some(Verb::Uninstall(args)) => uninstall::run(args, &config()?, notes).await,
        Some(Verb::Doctor(args)) => doctor::run(args, &config()?, &mut data).await,
        Some(Verb::Completions(args)) => completions::run(args.shell, &mut data),
    }
}

/// The time now, by this machine's clock.
fn now() -> UnixMillis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}
