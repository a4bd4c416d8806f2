//! The routes for the code that a job brings. Disks may be slow, so all work on the files of the code runs on separate
//! threads.

use std::ffi::OsStr;
use std::iter;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use placed_code::PlacedCode;
use protocol::code::{CodeId, MANIFEST_BYTES_MAX, Manifest};
use protocol::routes;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::code::{CodeFolder, CodeRequestError};
use crate::log::Stream;
use crate::process::environment::EnvChanges;
use crate::process::shim;
use crate::run::Command;
use crate::server::answer::{self, RequestFailure};
use crate::server::incoming::{BODY_TIME, read_body};

/// Maximum number of parts of a body that wait for the disk.
const PARTS_WAITING: usize = 8;

/// The id of the code in a path of these routes, and whether the path is the route for blobs.
pub(super) fn parse(path: &str) -> Option<(CodeId, bool)> {
    let path = path.strip_prefix(routes::AGENT_CODE)?;
    let of_blobs = path.strip_suffix(routes::AGENT_CODE_BLOBS);
    Some((of_blobs.unwrap_or(path).parse().ok()?, of_blobs.is_some()))
}

/// Accepts a manifest.
pub(super) async fn offer(id: CodeId, request: Request<Incoming>, agent: &Agent) -> answer::Result {
    let body = read_body(request.into_body(), MANIFEST_BYTES_MAX).await?;
    let offer = move |folder: &mut CodeFolder| {
        let manifest: Manifest = serde_json::from_slice(&body).map_err(RequestFailure::Manifest)?;
        Ok(folder.offer(id, manifest)?)
    };
    Ok(answer::message(&change(agent, offer).await?))
}

/// Accepts blobs. Reads the whole body even if a part is refused: a client that is still sending would not read the
/// answer.
pub(super) async fn receive(id: CodeId, request: Request<Incoming>, agent: &Agent) -> answer::Result {
    let (sender, mut parts) = mpsc::channel(PARTS_WAITING);
    let receive = change(agent, move |folder| Ok(folder.receive(id, iter::from_fn(|| parts.blocking_recv()))?));
    let (sent, received) = tokio::join!(pass_on(request.into_body(), sender), receive);
    sent?;
    Ok(answer::message(&received?))
}

async fn pass_on(mut body: Incoming, parts: mpsc::Sender<Bytes>) -> Result<(), RequestFailure> {
    loop {
        let frame = timeout(BODY_TIME, body.frame()).await;
        let frame = frame.map_err(|_| RequestFailure::BodyLost(format!("no bytes for {} s", BODY_TIME.as_secs())))?;
        match frame {
            None => return Ok(()),
            Some(Err(error)) => return Err(RequestFailure::BodyLost(error.to_string())),
            // A closed channel means that an earlier part was refused.
            Some(Ok(frame)) => drop(parts.send(frame.into_data().unwrap_or_default()).await),
        }
    }
}

/// Sends the code back, for a master that has lost it. Other code may arrive meanwhile.
pub(super) async fn held(id: CodeId, agent: &Agent) -> answer::Result {
    let held = agent.code.folder.lock().await.held(id)?;
    let intact = spawn_blocking(move || held.is_intact().then_some(held)).await.map_err(|_| RequestFailure::Ending)?;
    Ok(answer::code(intact.ok_or(CodeRequestError::Changed(id))?, agent.activity.begin()))
}

/// Complete code that is not in place yet. While this value lives, no other code replaces it.
pub(super) struct Ready {
    id: CodeId,
    folder: OwnedMutexGuard<CodeFolder>,
}

/// The staged code that a start needs. `None` if this code is already in place, or if the job brings no code.
pub(super) async fn ready(agent: &Agent, code: Option<CodeId>) -> Result<Option<Ready>, RequestFailure> {
    let Some(id) = code else { return Ok(None) };
    // If the code is in place, do not lock the folder: a long delivery of other code must not delay this start.
    if agent.status.borrow().code.running == Some(id) && !is_replaced(agent, id).await? {
        return Ok(None);
    }
    let folder = Arc::clone(&agent.code.folder).lock_owned().await;
    if folder.status().staged == Some(id) {
        Ok(Some(Ready { id, folder }))
    } else {
        Err(CodeRequestError::Missing(id).into())
    }
}

/// Whether another agent has replaced the code in the working directory.
async fn is_replaced(agent: &Agent, id: CodeId) -> Result<bool, RequestFailure> {
    let work_dir = agent.template.work_dir.clone();
    let look = move || matches!(PlacedCode::read(&work_dir), Ok(Some(placed)) if !placed.is(id));
    spawn_blocking(look).await.map_err(|_| RequestFailure::Ending)
}

/// Puts the code of a start into the working directory. A note in the output names each file that both the script and
/// the new code have changed.
pub(super) async fn put_in_place(agent: &Agent, ready: Option<Ready>) -> Result<(), RequestFailure> {
    let Some(Ready { id, folder }) = ready else { return Ok(()) };
    let output = Arc::clone(&agent.output);
    let put = move |folder: &mut CodeFolder| {
        for sentence in folder.put_in_place(id)? {
            output.append(Stream::Stderr, format!("[muster: {sentence}]\n").as_bytes());
        }
        Ok(())
    };
    change_locked(agent, folder, put).await
}

/// Changes the code, for one request at a time. Publishes the new status before the next change.
async fn change<T: Send + 'static>(
    agent: &Agent,
    change: impl FnOnce(&mut CodeFolder) -> Result<T, RequestFailure> + Send + 'static,
) -> Result<T, RequestFailure> {
    change_locked(agent, Arc::clone(&agent.code.folder).lock_owned().await, change).await
}

async fn change_locked<T: Send + 'static>(
    agent: &Agent,
    mut folder: OwnedMutexGuard<CodeFolder>,
    change: impl FnOnce(&mut CodeFolder) -> Result<T, RequestFailure> + Send + 'static,
) -> Result<T, RequestFailure> {
    let (agent, runtime) = (agent.clone(), Handle::current());
    // If the client disconnects, this future is dropped, but the thread finishes: the status must agree with the files.
    let work = spawn_blocking(move || {
        let changed = change(&mut folder);
        runtime.block_on(agent.ask(Command::Code(folder.status()))).ok_or(RequestFailure::Ending)?;
        changed
    });
    work.await.map_err(|_| RequestFailure::Ending)?
}

/// If the command runs `python`, perhaps after the words of an ENTRYPOINT, refuses an environment whose PATH has
/// neither `python` nor `python3`.
pub(super) fn find_python(agent: &Agent, changes: &EnvChanges) -> Result<(), RequestFailure> {
    let environment = agent.template.environment_with(changes);
    let path = environment.get(OsStr::new("PATH")).map(AsRef::as_ref);
    shim::missing_python(&agent.template.command, path).map_or(Ok(()), |missing| Err(RequestFailure::NoPython(missing)))
}
