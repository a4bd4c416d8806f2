//! The verbs, and the code that several verbs share. This file calls the function of the verb.

mod apply;
mod ask;
pub(crate) mod bring;
mod build;
mod cancel;
mod completions;
mod delete;
mod doctor;
mod dry_run;
mod env;
mod in_place;
mod install;
mod leaving;
mod list;
mod logs;
mod machines;
mod notify;
mod order;
mod own_master;
mod push;
mod pushing;
pub(crate) mod rerun;
mod scale;
mod several;
mod show;
mod spawn;
mod submission;
mod submit;
mod syntax;
mod top;
mod ui;
mod uninstall;
mod wait;
mod watch;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use master_client::MasterClient;
use protocol::ids::JobName;

use crate::address::config::ClientConfig;
use crate::address::connection::ConnectionArgs;
use crate::args::{NameArg, SubmitArgs, Verb};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::master::announcement::own_uid;
use crate::masters::finder::Finder;
use crate::masters::which_master::Masters;
use crate::output::command_line::for_shell;
use crate::output::{Data, Notes};

/// Runs the command.
pub(crate) async fn run(
    verb: Option<Verb>,
    submit: SubmitArgs,
    connection: ConnectionArgs,
    mut data: Data,
    notes: &Notes,
) -> Result<Exit, Error> {
    if let Some(file) = connection.token_file.as_deref().filter(|file| can_others_read(file) == Some(true)) {
        let (shown, word) = (file.display(), for_shell(&file.display().to_string()));
        notes.say(&format!("warning: other users can read the token in {shown}; keep them out: chmod 600 {word}"));
    }
    // Read the configuration only when it is needed: a wrong address must not fail a command that uses no master.
    let config = || ClientConfig::read(connection.clone());
    let masters = async |verb| Masters::find(verb, &config()?, notes).await;
    let finder = async |verb| Finder::new(verb, config()?, notes).await;
    let client = async |verb, job: &NameArg| finder(verb).await?.on_record(&job.name, notes).await;
    let seen = async |verb, job: &NameArg| finder(verb).await?.seen(&job.name, notes).await;
    match verb {
        None => submit::run(submit, &config()?, data, notes).await,
        Some(Verb::List(args)) => list::run(&config()?, &args, &mut data, notes).await,
        Some(Verb::Status(args)) => show::status(seen("status", &args.job).await?, args.format, &mut data).await,
        Some(Verb::Why(args)) => show::why(&seen("why", &args.job).await?, args.format, &mut data),
        Some(Verb::Timeline(args)) => show::timeline(seen("timeline", &args.job).await?, args.format, &mut data).await,
        Some(Verb::Stacks(args)) => show::stacks(&client("stacks", &args.job).await?, &args, &mut data).await,
        Some(Verb::Top(args)) => top::run(&finder("top").await?, &args, &mut data, notes).await,
        Some(Verb::Ui(args)) => ui::run(args, &config()?, &mut data, notes).await,
        Some(Verb::Logs(args)) => logs::run(&finder("logs").await?, args, data, notes).await,
        Some(Verb::Apply(args)) => apply::run(args, &config()?, data, notes).await,
        Some(Verb::Spawn(args)) => spawn::run(args, &config()?, data, notes).await,
        Some(Verb::Get(args)) => show::get(&masters("get").await?, &args, &mut data).await,
        Some(Verb::Wait(args)) => wait::run(finder("wait").await?, args, &config()?, data, notes).await,
        Some(Verb::Scale(args)) => {
            scale::run(&client("scale", &args.job).await?, &args.job.name, args.worker_num, notes).await
        }
        Some(Verb::Rerun(args)) => rerun::run(*args, &config()?, data, notes).await,
        Some(Verb::Push(args)) => push::run(client("push", &args.job).await?, args, notes).await,
        Some(Verb::Suspend(args)) => for_each(&finder("suspend").await?, &args.names, notes, scale::suspend).await,
        Some(Verb::Resume(args)) => for_each(&finder("resume").await?, &args.names, notes, scale::resume).await,
        Some(Verb::Cancel(args)) => cancel::run(&finder("cancel").await?, &args.names, notes).await,
        Some(Verb::Delete(args)) => for_each(&finder("delete").await?, &args.names, notes, delete::delete).await,
        Some(Verb::Build(args)) => build::run(args, &config()?, &mut data, notes).await,
        Some(Verb::Env(args)) => env::run(args.unset, &mut data, notes).await,
        Some(Verb::Install(args)) => install::run(args, &config()?, &mut data, notes).await,
        Some(Verb::Uninstall(args)) => uninstall::run(args, &config()?, notes).await,
        Some(Verb::Doctor(args)) => doctor::run(args, &config()?, &mut data, notes).await,
        Some(Verb::Completions(args)) => completions::run(args.shell, &mut data),
    }
}

/// Does `work` for each job, with a client of its master.
async fn for_each(
    finder: &Finder,
    names: &[JobName],
    notes: &Notes,
    work: impl AsyncFn(&MasterClient, &JobName, &Notes) -> Result<(), Error>,
) -> Result<Exit, Error> {
    let work = &work;
    let one = |name| async move { work(&finder.on_record(&name, notes).await?, &name, notes).await };
    Ok(several::each(names, notes, one).await?.failed)
}

/// The current folder.
fn current_folder() -> Result<PathBuf, Error> {
    std::env::current_dir().map_err(|error| Error::input("find the current folder").because(error))
}

/// Whether the group or others can read a file of this user. Kubernetes sets the modes of a Secret's files, which are in
/// a folder such as `..2026_01_31_10_00_00.1`.
fn can_others_read(path: &Path) -> Option<bool> {
    let path = path.canonicalize().ok()?;
    let found = path.metadata().ok().filter(|found| found.is_file() && Some(found.uid()) == own_uid())?;
    let is_of_secret = path.parent()?.file_name()?.as_bytes().starts_with(b"..");
    Some(found.mode() & 0o044 != 0 && !is_of_secret)
}
