//! `push --watch`: pushes the code of a folder after each change. If files change during a push, the next push sends the
//! newest files.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;

use protocol::code::CodeId;
use protocol::elastic::JobPatch;
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::view::{JobState, JobView};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::leaving::{Stage, unless_interrupted};
use super::push::{self, Pushed};
use crate::args::PushArgs;
use crate::changes::Changes;
use crate::error::Error;
use crate::exit::Exit;
use crate::follow::tell_end;
use crate::master_client::{MasterClient, MasterError};
use crate::output::Notes;
use crate::pack::{Listing, PackError, Packed, Scope};
use crate::patience::Patience;
use crate::report;

pub(super) async fn run(client: MasterClient, job: JobView, args: PushArgs, notes: &Notes) -> Result<Exit, Error> {
    let name = job.name.clone();
    let work = until_the_end(client.clone(), job, args, notes.clone());
    unless_interrupted(work, (&client, &name), || Stage::Watching, notes).await
}

/// Pushes until the job has ended, however it ends.
async fn until_the_end(client: MasterClient, job: JobView, args: PushArgs, notes: Notes) -> Result<Exit, Error> {
    let folder = match (&job.spec.code, &job.spec.work_dir) {
        (None, Some(folder)) => folder.into(),
        (Some(_), _) | (None, None) => push::folder(args.folder)?,
    };
    let changes = Changes::new().map_err(|source| Error::Watch { folder: folder.clone(), source })?;
    let watch = Watch {
        client: client.clone(),
        name: job.name.clone(),
        spec: job.spec.clone(),
        folder,
        force: args.force,
        changes,
        tried: None,
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

/// Waits for the end of the job. Says when its script has failed and the job waits for new code.
async fn end_of(client: &MasterClient, mut job: JobView, notes: &Notes) -> Result<JobView, Error> {
    let mut told = None;
    loop {
        let is_halted = |now: &JobView| now.state == JobState::Halted && now.generation > told;
        job = push::until(client, job, |now| now.result.is_some() || is_halted(now)).await?;
        if job.result.is_some() {
            return Ok(job);
        }
        told = job.generation;
        notes.say(&format!("job {} is halted: {}; the next change starts it again", job.name, push::why(&job)));
    }
}

/// The folder whose changes are pushed.
struct Watch {
    client: MasterClient,
    name: JobName,
    spec: JobSpec,
    folder: PathBuf,
    /// Whether the first push starts the scripts again even if the code is the same.
    force: bool,
    changes: Changes,
    /// The newest code that was pushed, or that could not be pushed.
    tried: Option<CodeId>,
    notes: Notes,
}

impl Watch {
    /// Pushes now and after each change. Ends only with an error that no further change of the folder can remove.
    async fn go_on(mut self) -> Result<Infallible, Error> {
        let mut since = Instant::now();
        loop {
            match self.push_changes(since).await {
                Ok(Some(sentence)) => self.notes.say(&sentence),
                Ok(None) => {}
                Err(error) if self.may_pass(&error) => report(&error, &self.notes),
                Err(error) => return Err(error),
            }
            since = self.changes.settled().await.map_err(|source| self.failed(source))?;
        }
    }

    /// Pushes the folder's files if they differ from those of the last push. Returns a sentence if the scripts start again.
    async fn push_changes(&mut self, since: Instant) -> Result<Option<String>, Error> {
        let code = match self.pack().await {
            // The removal is a further change.
            Err(Error::Pack(error)) if error.is_of_vanished_file() && self.folder.is_dir() => return Ok(None),
            packed => packed?,
        };
        let before = self.tried.replace(code.id());
        if before.is_none() {
            self.notes.say(&format!("watching {} for job {}", self.folder.display(), self.name));
        }
        // A job that runs in this folder has started with these files.
        let is_known = before.is_none() && self.spec.code.is_none() && !self.force;
        if before == Some(code.id()) || is_known {
            return Ok(None);
        }
        push::check(&code, &self.folder).await?;
        let mut patience = Patience::new();
        loop {
            match self.push(&code, since).await {
                Err(Error::Master(error)) => patience.wait_after(error).await?,
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
        let Pushed { now, .. } = push::patch(&self.client, &self.name, patch, Some(code)).await?;
        self.force = false;
        let started = push::started(&self.client, &before, &now).await?;
        Ok(started.map(|view| push::outcome(&view, &now, since.elapsed())))
    }

    /// Packs the folder. All folders are watched before the files are read.
    async fn pack(&mut self) -> Result<Packed, Error> {
        loop {
            let listing = self.blocking(|folder, spec| {
                let scope = if spec.code.is_some() { Scope::Job } else { Scope::Sources(&spec.script) };
                Listing::of(folder, scope)
            });
            let listing = listing.await?;
            if !self.changes.watch(&listing.folders).map_err(|source| self.failed(source))? {
                return self.blocking(move |_, spec| Packed::of(&listing, &spec.script)).await;
            }
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&PathBuf, &JobSpec) -> Result<T, PackError> + Send + 'static,
    ) -> Result<T, Error> {
        let (folder, spec) = (self.folder.clone(), self.spec.clone());
        Ok(spawn_blocking(move || work(&folder, &spec)).await.expect("packing does not panic")?)
    }

    /// Whether a later change of the folder may remove this error.
    fn may_pass(&self, error: &Error) -> bool {
        let is_for_good = |status: u16| matches!(status, 401 | 403 | 404);
        let is_refused = matches!(error, Error::Master(MasterError::Refused(problem)) if !is_for_good(problem.status));
        is_refused || matches!(error, Error::Pack(_)) && self.folder.is_dir()
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Watch { folder: self.folder.clone(), source }
    }
}
