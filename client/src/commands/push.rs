//! `push`: gives a job new code while it runs. All its scripts start again with it, in the pods that they have. `watch.rs`
//! repeats this after each change.

use std::path::{Path, PathBuf};
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

use super::{bring, watch};
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

/// What the master has recorded.
pub(super) struct Pushed {
    /// The job with the push.
    pub(super) now: JobView,
    /// A sentence about the files that were sent, if any.
    pub(super) sent: Option<String>,
}

pub(super) async fn run(client: MasterClient, args: PushArgs, notes: &Notes) -> Result<Exit, Error> {
    let begun = Instant::now();
    let before = client.view(&args.job.name).await?;
    let is_pushable = before.spec.code.is_some() || before.spec.work_dir.is_some();
    if args.watch && is_pushable && before.result.is_none() {
        return watch::run(client, before, args, notes).await;
    }
    let Pushed { now, sent } = once(&client, &before, args).await?;
    sent.iter().for_each(|sentence| notes.say(sentence));
    let Some(view) = started(&client, &before, &now).await? else {
        notes.say(&format!("job {} has this code already; to start its scripts again: --force", before.name));
        return Ok(Exit::Done);
    };
    notes.say(&outcome(&view, &now, begun.elapsed()));
    Ok(Exit::Done)
}

async fn once(client: &MasterClient, job: &JobView, args: PushArgs) -> Result<Pushed, Error> {
    if job.spec.code.is_none() {
        return patch(client, &job.name, JobPatch { reload: true, ..JobPatch::default() }, None).await;
    }
    let (folder, script) = (folder(args.folder)?, job.spec.script.clone());
    let packing = spawn_blocking({
        let folder = folder.clone();
        move || Packed::read(&folder, &script)
    });
    let code = packing.await.expect("packing does not panic")?;
    check(&code, &folder).await?;
    let change = JobPatch { code: Some(code.id()), reload: args.force, ..JobPatch::default() };
    patch(client, &job.name, change, Some(&code)).await
}

/// The folder with the new code.
pub(super) fn folder(given: Option<PathBuf>) -> Result<PathBuf, Error> {
    let here = std::env::current_dir().map_err(RequestError::NoFolder)?;
    Ok(given.map_or(here.clone(), |folder| here.join(folder)))
}

/// Asks for the change. Sends the code if the master does not have it.
pub(super) async fn patch(
    client: &MasterClient,
    job: &JobName,
    patch: JobPatch,
    code: Option<&Packed>,
) -> Result<Pushed, Error> {
    match (client.patch(job, patch).await, code) {
        (Err(MasterError::Refused(problem)), Some(code)) if problem.code == ErrorCode::CodeMissing => {
            let sent = Some(bring::send(client, code).await?);
            Ok(Pushed { now: client.patch(job, patch).await?, sent })
        }
        (answer, _) => Ok(Pushed { now: answer?, sent: None }),
    }
}

/// Lets this machine's Python parse the code, if there is one. Its version may differ from that of the job.
pub(super) async fn check(code: &Packed, folder: &Path) -> Result<(), Error> {
    let is_source = |path: &&str| path.ends_with(".py");
    let paths: Vec<&str> = code.manifest().files().iter().map(|file| file.path.as_str()).filter(is_source).collect();
    let parse = async |python: &str| {
        let mut command = Command::new(python);
        command.args(["-I", "-S", "-c", PARSE]).current_dir(folder).kill_on_drop(true);
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
pub(super) async fn started(
    client: &MasterClient,
    before: &JobView,
    pushed: &JobView,
) -> Result<Option<JobView>, Error> {
    if pushed.pushes == before.pushes {
        return Ok(None);
    }
    until(client, before.clone(), |view| is_settled(before, view, pushed.pushes)).await.map(Some)
}

/// Waits until the job passes a test.
pub(super) async fn until(
    client: &MasterClient,
    mut view: JobView,
    test: impl Fn(&JobView) -> bool,
) -> Result<JobView, Error> {
    let mut patience = Patience::new();
    while !test(&view) {
        match client.view_after(&view.name, view.seq, LONG_POLL).await {
            Ok(next) if next.uid != view.uid => return Err(Error::Replaced(view.name)),
            Ok(next) => {
                patience.restore();
                view = next;
            }
            Err(error) if error.is_not_found() => return Err(Error::Deleted(view.name)),
            Err(error) => patience.wait_after(error).await?,
        }
    }
    Ok(view)
}

fn is_settled(before: &JobView, now: &JobView, pushes: u32) -> bool {
    let is_new = now.pushes >= pushes && now.generation > before.generation;
    // Such a job uses the code in its next start, whenever that is.
    let waits = now.pushes >= pushes && matches!(now.state, JobState::Pending | JobState::Suspended);
    let has_run = is_new && matches!(now.state, JobState::Running | JobState::Halted);
    has_run || waits || now.result.is_some()
}

/// Why the newest start failed.
pub(super) fn why(view: &JobView) -> String {
    view.restarts.failed_starts.last().map(|failed| failed.failure.to_string()).unwrap_or_default()
}

/// A sentence about what followed a push.
pub(super) fn outcome(now: &JobView, pushed: &JobView, took: Duration) -> String {
    let name = &now.name;
    match (&now.result, now.state, now.generation) {
        (Some(result), ..) => format!("job {name} has ended meanwhile ({})", result.state()),
        (None, ..) if now.pushes > pushed.pushes && now.code != pushed.code => {
            format!("another push to job {name} came after this one, and has replaced its code")
        }
        (None, JobState::Running, Some(generation)) => {
            format!("job {name} runs the new code after {} (start {generation})", spelled(took))
        }
        (None, JobState::Halted, Some(generation)) => {
            format!(
                "job {name} has run the new code and failed after {} (start {generation}): {}",
                spelled(took),
                why(now)
            )
        }
        (None, state, _) => format!("job {name} is {state}, and will use the new code in its next start"),
    }
}

#[cfg(test)]
mod tests {
    use protocol::failure::{FailedStart, Failure};
    use protocol::ids::UnixMillis;
    use protocol::job::{JobRequest, JobSpec};
    use serde_json::json;

    use super::*;

    fn view(state: JobState, generation: &str, pushes: u32) -> JobView {
        let request = JobRequest::new("digits".parse().unwrap(), "AllReduce".parse().unwrap());
        let spec = JobSpec::try_from(request).unwrap();
        serde_json::from_value(json!({
            "name": "digits", "uid": "u", "seq": 1, "state": state, "generation": generation, "spec": spec,
            "pushes": pushes, "replicas": [], "times": {},
        }))
        .unwrap()
    }

    #[test]
    fn a_push_ends_when_the_new_code_runs_or_has_failed() {
        let before = view(JobState::Halted, "1.1", 0);
        assert!(!is_settled(&before, &view(JobState::Halted, "1.1", 1), 1), "it starts again in a moment");
        assert!(is_settled(&before, &view(JobState::Running, "1.2", 1), 1));
        let mut failed = view(JobState::Halted, "1.2", 1);
        assert!(is_settled(&before, &failed, 1));
        let failure = Failure::DeadlineExceeded { after_seconds: 9 };
        let (last_lines, consequences) = (vec![], vec![]);
        let start =
            FailedStart { generation: None, at: UnixMillis(0), failure, counted: true, last_lines, consequences };
        failed.restarts.note(start);
        let sentence =
            "job digits has run the new code and failed after 0.5 s (start 1.2): the job exceeded its deadline of 9 s";
        assert_eq!(outcome(&failed, &failed, Duration::from_millis(500)), sentence);
    }
}
