//! `push --watch`: pushes the code of a folder after each change. If files change during a push, the next push sends
//! the newest files. If the master refuses a push and may accept the push later, the client repeats the push, even if
//! no file changes.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::mem;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use master_client::{MasterClient, MasterError};
use protocol::code::CodeId;
use protocol::error::ErrorCode;
use protocol::ids::{JobName, UnixMillis};
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use protocol::view::{JobState, JobView};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::leaving::{Stage, unless_interrupted};
use super::pushing::{self, Pushed};
use super::syntax;
use crate::args::PushArgs;
use crate::code::changes::Changes;
use crate::code::pack::{Listing, Packed, Scope};
use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::follow::{or_deleted, tell_end, until};
use crate::master::patience::Patience;
use crate::output::Notes;
use crate::output::command_line::command;
use crate::report;

/// The shortest pause before the client repeats a refused push. The pauses grow up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub(super) async fn run(client: MasterClient, job: JobView, args: PushArgs, notes: &Notes) -> Result<Exit, Error> {
    let name = job.name.clone();
    let work = until_the_end(client, job, args, notes.clone());
    unless_interrupted(work, slice::from_ref(&name), || Stage::Watching, notes).await
}

/// Pushes until the job has ended, with any result.
async fn until_the_end(client: MasterClient, job: JobView, args: PushArgs, notes: Notes) -> Result<Exit, Error> {
    let folder = match (&job.spec.code, &job.spec.work_dir) {
        (Some(_), _) => pushing::folder(args.folder)?,
        (None, Some(folder)) => match Path::new(job.spec.script.as_str()).parent() {
            Some(outside) if outside.is_absolute() => outside.into(),
            _ => folder.into(),
        },
        (None, None) => return Err(no_folder(&job.name)),
    };
    let changes = Changes::new().map_err(unwatched(&folder))?;
    let watch = FolderWatch {
        client: client.clone(),
        name: job.name.clone(),
        spec: Arc::clone(&job.spec),
        folder,
        force: args.force,
        checks_syntax: !args.force,
        warned: None,
        changes,
        state: PushState::New { begun: begun(&job) },
        told: None,
        notes: notes.clone(),
    };
    tokio::select! {
        ended = end_of(&client, job, &notes) => {
            tell_end(&ended?, &notes);
            Ok(Exit::Done)
        }
        failed = watch.go_on() => failed.map(|never| match never {}),
    }
}

/// Waits for the end of the job. Prints a sentence each time the script fails and the job waits for new code.
async fn end_of(client: &MasterClient, mut job: JobView, notes: &Notes) -> Result<JobView, Error> {
    let mut told = None;
    loop {
        let is_halted = |now: &JobView| now.state == JobState::Halted && now.generation > told;
        let decided = until(client, &mut job, |now| now.result.is_some() || is_halted(now), |_| ()).await;
        decided.map_err(|error| or_deleted(error, &job.name))?;
        if job.result.is_some() {
            return Ok(job);
        }
        told = job.generation;
        notes.say(&format!("job {} is halted: {}; the next change starts the job again", job.name, pushing::why(&job)));
    }
}

/// The time at which the first of the job's scripts started. If no replica has this time, the time at which the job was
/// halted.
fn begun(job: &JobView) -> Option<SystemTime> {
    let starts = job.replicas.iter().filter_map(|replica| replica.started_at);
    let UnixMillis(begun) = starts.min().or(job.times.halted)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_millis(begun))
}

/// Pushes the changes of a folder to a job.
struct FolderWatch {
    client: MasterClient,
    name: JobName,
    spec: Arc<JobSpec>,
    folder: PathBuf,
    /// Whether the first push starts the scripts again even if the code is the same.
    force: bool,
    /// Whether the code is sent only if its script parses.
    checks_syntax: bool,
    /// The warning that the check of the syntax made before the last push.
    warned: Option<String>,
    changes: Changes,
    state: PushState,
    /// The newest error that was shown since the last change of a file.
    told: Option<String>,
    notes: Notes,
}

/// Whether the folder's files were pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushState {
    /// The files were not packed yet. `begun` is the time at which the scripts started, if the scripts have started.
    New { begun: Option<SystemTime> },
    /// The newest files were not pushed yet, or the master may accept their push later.
    Due,
    /// No push is needed while the files are the same as in this code.
    Done(CodeId),
}

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// Push the same files again after a pause.
    Pause,
    /// Wait for a change of the files.
    Change,
    /// No change of the files can remove the error.
    End,
}

impl FolderWatch {
    /// Pushes now and after each change. Ends only with an error that no further change of the folder can remove.
    async fn go_on(mut self) -> Result<Infallible, Error> {
        let (mut since, mut pauses) = (Instant::now(), pauses());
        loop {
            let pause = match self.push_changes(since).await {
                Ok(sentence) => {
                    sentence.iter().for_each(|sentence| self.notes.say(sentence));
                    None
                }
                Err(error) => {
                    let after = self.after(&error);
                    if after == After::End {
                        return Err(error);
                    }
                    self.tell(&error);
                    if after == After::Pause { pauses.next() } else { None }
                }
            };
            if let Some(changed) = self.changes.settled(pause).await.map_err(unwatched(&self.folder))? {
                (since, pauses) = (changed, self::pauses());
                self.told = None;
            }
        }
    }

    /// Shows an error if it differs from the error of the last attempt.
    fn tell(&mut self, error: &Error) {
        let told = self.told.replace(error.to_string());
        if told != self.told {
            report(error, &self.notes);
        }
    }

    /// Pushes the folder's files if they differ from the files of the last push. Returns a sentence if the scripts
    /// start again.
    async fn push_changes(&mut self, since: Instant) -> Result<Option<String>, Error> {
        let (code, modified) = match self.pack().await {
            // A file was removed while the folder was read. The removal is a change, which causes the next push.
            Err(error) if is_of_vanished_file(&error) && self.folder.is_dir() => return Ok(None),
            packed => packed?,
        };
        let done = PushState::Done(code.id());
        if self.state == done {
            return Ok(None);
        }
        if let PushState::New { begun } = mem::replace(&mut self.state, PushState::Due) {
            self.notes.say(&format!("watching {} for job {}", self.folder.display(), self.name));
            // A job that runs in this folder already uses these files, if no file was saved after its start.
            let is_newer = begun.is_some() && modified > begun;
            if self.spec.code.is_none() && !self.force && !is_newer {
                self.state = done;
                return Ok(None);
            }
        }
        let pushed = self.check_and_push(&code, since).await;
        if pushed.as_ref().err().is_none_or(|error| self.after(error) != After::Pause) {
            self.state = done;
        }
        pushed
    }

    async fn check_and_push(&mut self, code: &Packed, since: Instant) -> Result<Option<String>, Error> {
        if self.checks_syntax {
            let warning = syntax::check_push(code, &self.spec.script).await?;
            if self.warned != warning {
                warning.iter().for_each(|sentence| self.notes.say(sentence));
                self.warned = warning;
            }
        }
        let mut patience = Patience::of_observer();
        loop {
            match self.push(code, since).await {
                Err(Error { cause: Cause::Master(error), .. }) => patience.wait_after(*error).await?,
                outcome => return outcome,
            }
        }
    }

    async fn push(&mut self, code: &Packed, since: Instant) -> Result<Option<String>, Error> {
        let before = self.client.view(&self.name).await?;
        let patch = match self.spec.code {
            Some(_) => JobPatch { code: Some(code.id()), reload: self.force, ..JobPatch::default() },
            None => JobPatch { reload: true, ..JobPatch::default() },
        };
        let Pushed { now, .. } = pushing::patch(&self.client, &self.name, patch, Some(code), &self.notes).await?;
        self.force = false;
        let started = pushing::started(&self.client, &before, &now).await?;
        Ok(started.map(|view| pushing::outcome(&view, &now, since.elapsed()).1))
    }

    /// Packs the folder. Also returns the modification time of the newest file. To miss no change, watches all folders
    /// before it reads the files.
    async fn pack(&mut self) -> Result<(Packed, Option<SystemTime>), Error> {
        loop {
            let listing = self.blocking(|folder, spec| {
                let scope = if spec.code.is_some() { Scope::Job } else { Scope::Sources(&spec.script) };
                Listing::of(folder, scope)
            });
            let listing = listing.await?;
            if !self.changes.watch(&listing.folders).map_err(unwatched(&self.folder))? {
                let modified = listing.modified;
                return Ok((self.blocking(move |_, spec| Packed::of(&listing, &spec.script)).await?, modified));
            }
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&PathBuf, &JobSpec) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (folder, spec) = (self.folder.clone(), Arc::clone(&self.spec));
        spawn_blocking(move || work(&folder, &spec)).await.expect("packing does not panic")
    }

    fn after(&self, error: &Error) -> After {
        match &error.cause {
            Cause::Master(error) => after_answer(error),
            Cause::Files if self.folder.is_dir() => After::Change,
            Cause::Files | Cause::Other | Cause::Forbidden | Cause::Passing | Cause::ClosedStdout => After::End,
        }
    }
}

fn after_answer(error: &MasterError) -> After {
    let MasterError::Refused(problem) = error else { return After::End };
    match (problem.status, problem.code) {
        (401 | 403 | 404, _) => After::End,
        // The agent, the master or its disk may recover.
        (500.., _) | (_, ErrorCode::CodeNotTaken | ErrorCode::CodeMissing) => After::Pause,
        (_, _) => After::Change,
    }
}

/// Whether a file or folder was removed after it was listed and before it was read.
fn is_of_vanished_file(error: &Error) -> bool {
    matches!(error.cause, Cause::Files) && error.io_kind() == Some(ErrorKind::NotFound)
}

/// The error for a folder that cannot be watched for changes.
fn unwatched(folder: &Path) -> impl FnOnce(io::Error) -> Error {
    let hint = "list large folders in .musterignore, or raise the limits of inotify: sysctl fs.inotify";
    move |error| Error::input(format!("watch {} for changes", folder.display())).hint(hint).because(error)
}

/// The error for a job without a folder to watch, for example because the job runs on machines that join.
fn no_folder(job: &JobName) -> Error {
    Error::input(format!("--watch cannot be used with job {job}: the job names no folder that could be watched"))
        .hint(format!("to start its scripts again: {}", command(&format!("push {job}"))))
}

fn pauses() -> ExponentialBackoff {
    let pauses = ExponentialBuilder::new().with_min_delay(FIRST_PAUSE).with_max_delay(LONGEST_PAUSE);
    pauses.without_max_times().build()
}
