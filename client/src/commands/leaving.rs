//! Commands that the user may leave early, and the sentences that they end with. The job itself goes on.

use protocol::ids::JobName;

use crate::error::Error;
use crate::exit::Exit;
use crate::interrupt::Interrupts;
use crate::master_client::MasterClient;
use crate::output::Notes;

/// How far a command is with its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The job that has its name is being deleted first.
    Replacing,
    /// The request was sent, and the master has not answered.
    Submitting,
    /// The master has accepted the job, and it is being followed.
    Following,
    /// `wait` is waiting for its end.
    Waiting,
}

/// Does `work` unless an interrupt comes first; then prints the job's state and how to come back. The work is its own
/// task: writing to a slow reader may block it, and an interrupt must work even then.
pub(super) async fn unless_interrupted(
    work: impl Future<Output = Result<Exit, Error>> + Send + 'static,
    (client, name): (&MasterClient, &JobName),
    stage: impl Fn() -> Stage,
    notes: &Notes,
) -> Result<Exit, Error> {
    let mut interrupts = Interrupts::listen().map_err(Error::Runtime)?;
    let mut work = tokio::spawn(work);
    tokio::select! {
        outcome = &mut work => outcome.expect("the task is not aborted and does not panic"),
        () = interrupts.next() => {
            work.abort();
            notes.end_progress();
            notes.say(&farewell(stage(), name, client));
            Ok(Exit::NotSucceeded)
        }
    }
}

/// The command that follows a job.
pub(super) fn to_follow(name: &JobName, client: &MasterClient) -> String {
    format!("client logs {name} -f --master {}", client.url())
}

fn farewell(stage: Stage, name: &JobName, client: &MasterClient) -> String {
    let master = client.url();
    let (standing, come_back) = match stage {
        Stage::Submitting => {
            return format!(
                "it is not known whether job {name} was accepted: client status {name} --master {master} tells"
            );
        }
        Stage::Replacing => return format!("job {name} is being deleted; no other was submitted"),
        Stage::Following => (format!("left job {name}, which goes on"), to_follow(name, client)),
        Stage::Waiting => (
            format!("no longer waiting for job {name}; it is left alone"),
            format!("client wait {name} --master {master}"),
        ),
    };
    format!("{standing}\nto come back: {come_back}\nto cancel it: client cancel {name} --master {master}")
}
