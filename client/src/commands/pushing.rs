//! The steps of a push, for `push` and for `push --watch`.

use std::path::PathBuf;
use std::time::Duration;

use master_client::{MasterClient, MasterError};
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use protocol::patch::JobPatch;
use protocol::view::{JobState, JobView};
use tokio::time::sleep;

use super::bring::with_code;
use super::current_folder;
use crate::code::pack::Packed;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::follow::{or_deleted, until};
use crate::output::{Notes, spelled};

/// Pause before the request is repeated while agents receive the code. The master also waits before each answer.
const REPEAT_PAUSE: Duration = Duration::from_millis(100);

/// A push that the master has recorded.
pub(super) struct Pushed {
    /// The job after the push.
    pub(super) now: JobView,
    /// A sentence about the files that were sent, if any.
    pub(super) sent: Option<String>,
}

/// The folder with the new code.
pub(super) fn folder(given: Option<PathBuf>) -> Result<PathBuf, Error> {
    let here = current_folder()?;
    Ok(given.map_or(here.clone(), |folder| here.join(folder)))
}

/// Asks the master for the change. If the master does not have the code, sends the code. Repeats the request while
/// agents receive the code.
pub(super) async fn patch(
    client: &MasterClient,
    job: &JobName,
    patch: JobPatch,
    code: Option<&Packed>,
    notes: &Notes,
) -> Result<Pushed, Error> {
    let (mut sent, mut told) = (None, String::new());
    loop {
        let request = || client.patch(job, patch);
        match with_code(client, code, notes, request, |upload| sent = upload.as_ref().ok().cloned()).await {
            Err(MasterError::Refused(problem)) if problem.code == ErrorCode::CodeUnderway => {
                sent.take().iter().for_each(|sentence: &String| notes.say(sentence));
                if told != problem.detail {
                    notes.say(&problem.detail);
                    told = problem.detail;
                }
                sleep(REPEAT_PAUSE).await;
            }
            answer => return Ok(Pushed { now: answer?, sent }),
        }
    }
}

/// Waits until all scripts have started with the new code. Returns earlier if the new code has halted the job, or if
/// the job is pending, suspended or ended. `None` if the push changed nothing.
pub(super) async fn started(
    client: &MasterClient,
    before: &JobView,
    pushed: &JobView,
) -> Result<Option<JobView>, Error> {
    if pushed.pushes == before.pushes {
        return Ok(None);
    }
    let mut view = before.clone();
    let settled = until(client, &mut view, |view| is_settled(view, pushed.pushes), |_| ()).await;
    settled.map_err(|error| or_deleted(error, &before.name))?;
    Ok(Some(view))
}

fn is_settled(now: &JobView, pushes: u32) -> bool {
    // A pending or suspended job uses the code in its next start.
    let waits = now.pushes >= pushes && matches!(now.state, JobState::Pending | JobState::Suspended);
    now.started_pushes >= pushes || waits || now.result.is_some()
}

/// Why the newest failed start failed.
pub(super) fn why(view: &JobView) -> String {
    view.restarts.failed_starts.last().map(|failed| failed.failure.to_string()).unwrap_or_default()
}

/// The exit code of a push, and a sentence about what followed the push. If the new code did not run and will not run,
/// the push has not succeeded.
pub(super) fn outcome(now: &JobView, pushed: &JobView, took: Duration) -> (Exit, String) {
    let name = &now.name;
    let has_run = now.started_pushes >= pushed.pushes;
    match (&now.result, now.generation) {
        _ if now.pushes > pushed.pushes && now.code != pushed.code => {
            (Exit::NotSucceeded, format!("a later push to job {name} has replaced the code of this push"))
        }
        (Some(result), _) if has_run => {
            (Exit::Done, format!("job {name} has run the new code, and has ended ({})", result.state()))
        }
        (Some(result), _) => {
            (Exit::NotSucceeded, format!("job {name} has ended without the new code ({})", result.state()))
        }
        (None, Some(generation)) if has_run && now.state == JobState::Halted => {
            let why = why(now);
            (Exit::Done, format!("job {name} has run the new code and is halted (start {generation}): {why}"))
        }
        (None, Some(generation)) if has_run => {
            let took = spelled(took);
            (Exit::Done, format!("job {name} runs the new code after {took} (start {generation})"))
        }
        (None, _) => (Exit::Done, format!("job {name} is {}, and will use the new code in its next start", now.state)),
    }
}

#[cfg(test)]
mod tests {
    use protocol::failure::{FailedStart, Failure};
    use protocol::ids::UnixMillis;

    use super::*;
    use crate::output::narrate::tests::pending;

    #[test]
    fn a_push_ends_when_the_new_code_has_halted_the_job() {
        let before =
            JobView { state: JobState::Halted, generation: Some("1.1".parse().unwrap()), pushes: 1, ..pending(2) };
        assert!(!is_settled(&before, 1), "is_settled is true for a job that the old code has halted");
        let mut after = JobView { generation: Some("1.2".parse().unwrap()), started_pushes: 1, ..before.clone() };
        let failure = Failure::DeadlineExceeded { after_seconds: 9 };
        after.restarts.note(FailedStart::new(None, UnixMillis(0), failure));
        assert!(is_settled(&after, 1));
        let sentence =
            "job digits has run the new code and is halted (start 1.2): the job exceeded its deadline of 9 s";
        assert_eq!(outcome(&after, &before, Duration::ZERO), (Exit::Done, sentence.to_owned()));
    }
}
