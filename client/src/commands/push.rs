//! `push`: gives a job new code while it runs. All its scripts start again with it, in the pods that they have.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use protocol::elastic::JobPatch;
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use protocol::view::{JobState, JobView};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::bring;
use crate::args::PushArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::master_client::{LONG_POLL, MasterClient, MasterError};
use crate::output::{Notes, spelled};
use crate::pack::{PackError, Packed};
use crate::patience::Patience;
use crate::request::RequestError;

/// Maximum time for Python to parse the code. After that, the code is sent unchecked.
const PARSE_TIMEOUT: Duration = Duration::from_secs(20);
/// A Python program that parses the files whose names it reads, without running them.
const PARSE: &str = "
import ast, sys
for path in sys.stdin.read().split(chr(0)):
    try: ast.parse(open(path, 'rb').read(), path)
    except SyntaxError as error: print(f'{error.msg} ({path}, line {error.lineno})'); sys.exit(65)
";
/// `EX_DATAERR` of sysexits.h.
const DOES_NOT_PARSE: i32 = 65;

pub(super) async fn run(client: &MasterClient, args: PushArgs, notes: &Notes) -> Result<Exit, Error> {
    let begun = Instant::now();
    let before = client.view(&args.job.name).await?;
    let now = match before.spec.code {
        Some(_) => push_folder(client, &before, args, notes).await?,
        None => client.patch(&before.name, JobPatch { reload: true, ..JobPatch::default() }).await?,
    };
    let Some(now) = started(client, &before, now).await? else {
        notes.say(&format!("job {} has this code already; to start its scripts again: --force", before.name));
        return Ok(Exit::Done);
    };
    notes.say(&outcome(&now, begun.elapsed()));
    Ok(Exit::Done)
}

/// Sends the files of a folder as the job's new code.
async fn push_folder(client: &MasterClient, job: &JobView, args: PushArgs, notes: &Notes) -> Result<JobView, Error> {
    let here = std::env::current_dir().map_err(RequestError::NoFolder)?;
    let (folder, script) = (args.folder.map_or(here.clone(), |folder| here.join(folder)), job.spec.script.clone());
    let packing = spawn_blocking({
        let folder = folder.clone();
        move || Packed::read(&folder, &script)
    });
    let code = packing.await.expect("packing does not panic")?;
    check(&code, folder).await?;
    let patch = JobPatch { code: Some(code.id()), reload: args.force, ..JobPatch::default() };
    match client.patch(&job.name, patch).await {
        Err(MasterError::Refused(problem)) if problem.code == ErrorCode::CodeMissing => {
            bring::send(client, &code, notes).await?;
            Ok(client.patch(&job.name, patch).await?)
        }
        answer => Ok(answer?),
    }
}

/// Lets this machine's Python parse the code, if there is one. Its version may differ from that of the job.
async fn check(code: &Packed, folder: PathBuf) -> Result<(), Error> {
    let is_source = |path: &&str| path.ends_with(".py");
    let paths: Vec<&str> = code.manifest().files().iter().map(|file| file.path.as_str()).filter(is_source).collect();
    let parse = async |python: &str| {
        let mut command = Command::new(python);
        command.args(["-I", "-S", "-c", PARSE]).current_dir(&folder).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut stdin = child.stdin.take()?;
        stdin.write_all(paths.join("\0").as_bytes()).await.ok()?;
        drop(stdin);
        child.wait_with_output().await.ok()
    };
    let parsed = async {
        match parse("python3").await {
            Some(output) => Some(output),
            None => parse("python").await,
        }
    };
    match timeout(PARSE_TIMEOUT, parsed).await {
        Ok(Some(output)) if output.status.code() == Some(DOES_NOT_PARSE) => {
            Err(PackError::DoesNotParse(String::from_utf8_lossy(&output.stdout).trim().to_owned()).into())
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Waits until the job runs with the new code, waits for other reasons, or has ended. `None` if nothing was new.
async fn started(client: &MasterClient, before: &JobView, patched: JobView) -> Result<Option<JobView>, Error> {
    let name: &JobName = &before.name;
    if patched.pushes == before.pushes {
        return Ok(None);
    }
    let mut patience = Patience::new();
    let mut view = before.clone();
    while !is_settled(before, &view, patched.pushes) {
        match client.view_after(name, view.seq, LONG_POLL).await {
            Ok(next) if next.uid != before.uid => return Err(Error::Replaced(name.clone())),
            Ok(next) => {
                patience.restore();
                view = next;
            }
            Err(error) => patience.wait_after(error).await?,
        }
    }
    Ok(Some(view))
}

fn is_settled(before: &JobView, now: &JobView, pushes: u32) -> bool {
    let is_new = now.pushes >= pushes && now.generation > before.generation;
    // Such a job uses the code in its next start, whenever that is.
    let waits = now.pushes >= pushes && matches!(now.state, JobState::Pending | JobState::Suspended);
    is_new && now.state == JobState::Running || waits || now.result.is_some()
}

fn outcome(now: &JobView, took: Duration) -> String {
    let name = &now.name;
    match (&now.result, now.state, now.generation) {
        (None, JobState::Running, Some(generation)) => {
            format!("job {name} runs the new code after {} (start {generation})", spelled(took))
        }
        (None, state, _) => format!("job {name} is {state}, and will use the new code in its next start"),
        (Some(result), ..) => format!("job {name} has ended meanwhile ({})", result.state()),
    }
}
