//! `push`: gives a job new code while the job runs. All its scripts start again with the new code, in the same pods.
//! `watch.rs` pushes again after each change.

use std::path::Path;
use std::slice;
use std::time::Instant;

use master_client::MasterClient;
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::view::JobView;
use tokio::task::spawn_blocking;

use super::leaving::{Stage, unless_interrupted};
use super::pushing::{Pushed, folder, outcome, patch, started};
use super::syntax;
use super::watch;
use crate::args::PushArgs;
use crate::code::pack::Packed;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::Notes;

pub(super) async fn run(client: MasterClient, args: PushArgs, notes: &Notes) -> Result<Exit, Error> {
    let begun = Instant::now();
    let before = client.view(&args.job.name).await?;
    // A job that has ended or takes no new code is not watched. For such a job, `push` below sends one request, which
    // the master refuses.
    if args.watch && before.result.is_none() && before.spec.takes_new_code() {
        return watch::run(client, before, args, notes).await;
    }
    let name = before.name.clone();
    let work = push(client, before, begun, args, notes.clone());
    unless_interrupted(work, slice::from_ref(&name), || Stage::Pushing, notes).await
}

/// Pushes once, and prints what followed.
async fn push(
    client: MasterClient,
    before: JobView,
    begun: Instant,
    args: PushArgs,
    notes: Notes,
) -> Result<Exit, Error> {
    unused(&before.spec, args.folder.as_deref()).iter().for_each(|sentence| notes.say(sentence));
    let Pushed { now, sent } = record(&client, &before, args, &notes).await?;
    sent.iter().for_each(|sentence| notes.say(sentence));
    let Some(view) = started(&client, &before, &now).await? else {
        notes.say(&format!("job {} has this code already; add --force to start its scripts again", before.name));
        return Ok(Exit::Done);
    };
    let (exit, sentence) = outcome(&view, &now, begun.elapsed());
    notes.say(&sentence);
    Ok(exit)
}

/// A sentence for the user, if the user names a folder and the job runs in another folder.
fn unused(job: &JobSpec, given: Option<&Path>) -> Option<String> {
    let (own, given) = (job.work_dir.as_deref().filter(|_| job.code.is_none())?, given?);
    // The job's folder may be on another machine, so its path might not exist here.
    if given.canonicalize().is_ok_and(|given| own.canonicalize().is_ok_and(|own| own == given)) {
        return None;
    }
    let (name, own, given) = (&job.name, own.display(), given.display());
    Some(format!("job {name} runs in {own}: its scripts start again with the files there, not with {given}"))
}

/// Sends the push to the master, which records it.
async fn record(client: &MasterClient, job: &JobView, args: PushArgs, notes: &Notes) -> Result<Pushed, Error> {
    if job.spec.code.is_none() {
        let change = JobPatch { reload: true, ..JobPatch::default() };
        return patch(client, &job.name, change, None, notes).await;
    }
    let (folder, script) = (folder(args.folder)?, job.spec.script.clone());
    let code = spawn_blocking(move || Packed::read(&folder, &script)).await.expect("packing does not panic")?;
    if !args.force {
        syntax::check_push(&code, &job.spec.script).await?.iter().for_each(|sentence| notes.say(sentence));
    }
    let change = JobPatch { code: Some(code.id()), reload: args.force, ..JobPatch::default() };
    patch(client, &job.name, change, Some(&code), notes).await
}
