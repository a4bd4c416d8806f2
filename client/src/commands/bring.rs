//! Brings a job's own code to a master: packs the code, and sends the files that the master does not have.

use std::convert::Infallible;
use std::future::pending;
use std::path::PathBuf;
use std::time::Instant;

use master_client::{MasterClient, MasterError};
use protocol::code::{CodeId, ScriptPath};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::syntax;
use crate::args::SyntaxArgs;
use crate::code::pack::Packed;
use crate::ending::error::Error;
use crate::master::patience::persist;
use crate::output::{Notes, size, spelled};

/// Maximum number of uploads. During an upload, the master may remove blobs that it had before. The next upload then
/// sends these blobs.
const UPLOADS_MAX: usize = 3;
/// Maximum number of requests that need code.
const REQUESTS_MAX: usize = 4;

/// Packs the code in a job's folder, and checks its script, unless the user has turned this off. An agent would find a
/// mistake only after `--replace` has deleted the old job.
pub(super) async fn pack(
    folder: PathBuf,
    script: &ScriptPath,
    syntax: SyntaxArgs,
    notes: &Notes,
) -> Result<Packed, Error> {
    let in_folder = script.clone();
    let packing = spawn_blocking(move || Packed::read(&folder, &in_folder));
    let packed = packing.await.expect("packing does not panic")?;
    syntax::check_submit(&packed, script.as_str(), syntax).await?;
    packed.left_out().iter().chain(&packed.secrets()).for_each(|sentence| notes.say(sentence));
    Ok(packed)
}

/// Sends the code again whenever the master has lost the code and asks for it. Never returns.
pub(super) async fn send_again(
    client: &MasterClient,
    code: Option<Packed>,
    mut wanted: watch::Receiver<Option<CodeId>>,
    notes: &Notes,
) -> Infallible {
    let Some(code) = code else { return pending().await };
    let is_wanted = |wanted: &Option<CodeId>| *wanted == Some(code.id());
    loop {
        until(&mut wanted, is_wanted).await;
        match persist(notes, || send(client, &code)).await {
            Ok(sent) => notes.say(&format!("the master had lost the job's code; {sent}")),
            Err(error) => {
                notes.say(&format!("could not send the code that the master has lost: {error}"));
                if error.is_transient() {
                    continue;
                }
            }
        }
        // The master needs a moment to notice that it has the code.
        until(&mut wanted, |wanted| !is_wanted(wanted)).await;
    }
}

/// Waits until `test` holds for the code that the master wants. If the job is no longer followed, never returns.
async fn until(wanted: &mut watch::Receiver<Option<CodeId>>, test: impl FnMut(&Option<CodeId>) -> bool) {
    if wanted.wait_for(test).await.is_err() {
        pending().await
    }
}

/// Sends a request. While the master does not have the code, sends the code and repeats the request: a new master may
/// lack the code that an earlier master has received. `tell` gets the result of each upload, with its sentence.
pub(super) async fn with_code<T, F>(
    client: &MasterClient,
    code: Option<&Packed>,
    notes: &Notes,
    request: impl Fn() -> F,
    mut tell: impl FnMut(&Result<String, MasterError>),
) -> Result<T, MasterError>
where
    F: Future<Output = Result<T, MasterError>>,
{
    for _ in 1..REQUESTS_MAX {
        let answer = request().await;
        let lacks_code = answer.as_ref().is_err_and(MasterError::lacks_code);
        let Some(code) = code.filter(|_| lacks_code) else { return answer };
        let sent = persist(notes, || send(client, code)).await;
        tell(&sent);
        sent?;
    }
    request().await
}

/// Sends the code. If blobs are missing after an upload, sends them in the next upload. Returns a sentence about all
/// uploads. If another master has replaced the one that received the manifest, sends the manifest again.
pub(super) async fn send(client: &MasterClient, code: &Packed) -> Result<String, MasterError> {
    let begun = Instant::now();
    let mut missing = client.put_manifest(code.id(), code.manifest()).await?;
    let (mut sent, mut bytes) = (0, 0);
    for _ in 0..UPLOADS_MAX {
        if missing.is_empty() {
            break;
        }
        let (blobs, stream) = code.stream(&missing);
        let length = stream.len() as u64;
        missing = match client.put_blobs(code.id(), stream).await {
            Err(error) if error.lacks_code() => client.put_manifest(code.id(), code.manifest()).await?,
            missing => {
                (sent, bytes) = (sent + blobs, bytes + length);
                missing?
            }
        };
    }
    let (files, took) = (code.manifest().files().len(), spelled(begun.elapsed()));
    let counted = |count: usize| format!("{count} {}", if count == 1 { "file" } else { "files" });
    Ok(format!("code of {}: sent {}, {}, in {took}", counted(files), counted(sent), size(bytes)))
}
