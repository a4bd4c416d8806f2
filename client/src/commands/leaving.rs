//! Interrupts of commands that wait for a job. The command ends, and says what now happens to the job.

use master_client::{MasterClient, MasterError};
use protocol::ids::JobName;
use protocol::view::JobView;

use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::interrupt::Interrupts;
use crate::output::Notes;
use crate::output::command_line::command;

/// What a command does at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The master checks the job that will replace the old job with the same name, and gets its code.
    Checking,
    /// The old job with the same name is being deleted.
    Replacing,
    /// The request was sent, and the master has not answered.
    Submitting,
    /// The master has accepted the job, and the command follows it.
    Following,
    /// `wait` waits for the job's end.
    Waiting,
    /// `push` sends new code, or waits until the new code runs.
    Pushing,
    /// `push --watch` waits for changes of files.
    Watching,
}

/// Does `work`. If an interrupt comes first, says what happens to the jobs and which commands follow them again. The
/// work has its own task, so that an interrupt works even while a slow reader of stdout blocks the work.
pub(super) async fn unless_interrupted(
    work: impl Future<Output = Result<Exit, Error>> + Send + 'static,
    names: &[JobName],
    stage: impl Fn() -> Stage,
    notes: &Notes,
) -> Result<Exit, Error> {
    let mut interrupts = Interrupts::listen().map_err(Error::no_runtime)?;
    let mut work = tokio::spawn(work);
    tokio::select! {
        outcome = &mut work => outcome.expect("the task is not aborted and does not panic"),
        () = interrupts.next() => {
            work.abort();
            notes.end_progress();
            notes.say(&farewell(stage(), names));
            Ok(Exit::NotSucceeded)
        }
    }
}

/// The command that follows a job.
pub(super) fn to_follow(name: &JobName) -> String {
    command(&format!("logs {name} -f"))
}

/// The sentence about jobs whose submit has no known outcome.
pub(super) fn in_doubt(name: &str) -> String {
    let status = command(&format!("status {name}"));
    format!("job {name} may or may not have been accepted; to check: {status}")
}

/// Whether the command ends because the reader of stdout has ended, while the job may still run. If the master does not
/// say whether the job runs, it may.
pub(super) async fn left_by_its_reader(error: &Error, client: &MasterClient, name: &JobName) -> bool {
    let may_run = |view: Result<JobView, MasterError>| match view {
        Ok(view) => view.result.is_none(),
        Err(error) => !error.is_not_found(),
    };
    matches!(error.cause, Cause::ClosedStdout) && may_run(client.view(name).await)
}

/// What happens to the jobs of a command that ends at this stage.
pub(super) fn farewell(stage: Stage, names: &[JobName]) -> String {
    let listed = |between| names.iter().map(JobName::as_str).collect::<Vec<_>>().join(between);
    let name = &listed(" ");
    let status = || command(&format!("status {name}"));
    let (standing, come_back) = match stage {
        Stage::Checking => return "no job was deleted or submitted".to_owned(),
        Stage::Submitting => return in_doubt(name),
        Stage::Replacing => return format!("job {name} is being deleted; no new job was submitted"),
        Stage::Pushing => {
            return format!("job {name} keeps running, with the old code or the new code; to check: {}", status());
        }
        Stage::Watching => return format!("no longer watching files for job {name}; the job keeps running"),
        Stage::Following => {
            (format!("no longer following job {name}; the job keeps running"), format!("logs {name} -f"))
        }
        Stage::Waiting => {
            let standing = match names {
                [name] => format!("no longer waiting for job {name}; the job keeps running"),
                _ => format!("no longer waiting for jobs {}; the jobs keep running", listed(", ")),
            };
            (standing, format!("wait {name}"))
        }
    };
    let jobs = if names.len() == 1 { "job" } else { "jobs" };
    let cancel = command(&format!("cancel {name}"));
    format!("{standing}\nto continue: {}\nto cancel the {jobs}: {cancel}", command(&come_back))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_whose_master_does_not_answer_counts_as_running_when_stdout_is_closed() {
        let closed = Error::unsuccessful("stdout is closed").cause(Cause::ClosedStdout);
        // Nothing listens at this address.
        let client = MasterClient::new("http://127.0.0.1:1".parse().unwrap(), None).unwrap();
        assert!(left_by_its_reader(&closed, &client, &"digits".parse().unwrap()).await);
    }
}
