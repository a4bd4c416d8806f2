//! Runs a job at a new local master, which ends with the command.

use std::path::PathBuf;
use std::time::Duration;

use master_client::MasterClient;
use protocol::ids::JobName;
use tokio::task::JoinHandle;

use super::leaving::{Stage, left_by_its_reader};
use super::order::{Order, SubmitContent};
use super::submission::{Submission, submit_and_follow};
use crate::address::config::ClientConfig;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::follow::follow_unseen;
use crate::interrupt::Interrupts;
use crate::master::announcement::{Announced, Announcement};
use crate::master::local::LocalMaster;
use crate::masters::past;
use crate::output::{Notes, Output};

/// Maximum time for a cancelled job to end, besides its `--termination-grace`. After this time, its local master is
/// stopped.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the job at a local master. Always shuts the master down, with everything it has started.
pub(super) async fn at_own_master(order: Order, config: &ClientConfig, out: Output) -> Result<Exit, Error> {
    let mut interrupts = Interrupts::listen().map_err(Error::no_runtime)?;
    let mut master = LocalMaster::start()?;
    let notes = out.notes.clone();
    let outcome = follow_at(&mut master, order, config, out, &mut interrupts).await;
    notes.end_progress();
    master.shut_down(&mut interrupts).await;
    outcome
}

async fn follow_at(
    master: &mut LocalMaster,
    order: Order,
    config: &ClientConfig,
    out: Output,
    interrupts: &mut Interrupts,
) -> Result<Exit, Error> {
    let (name, notes) = (order.name.clone(), out.notes.clone());
    let grace = match &order.content {
        SubmitContent::Job(spec) => spec.pod.termination_grace_seconds(),
        SubmitContent::TfJob(_) => 0,
    };
    let patience = CANCEL_TIMEOUT + Duration::from_secs(grace.into());
    let url = tokio::select! {
        url = master.listening() => url?,
        () = interrupts.next() => {
            notes.say(&before_submitted(&name));
            return Ok(Exit::NotSucceeded);
        }
    };
    let announced = Announced { url: url.clone(), token: master.token().clone(), job: name.clone() };
    // At the end of this function, the announcement is dropped, which removes the file.
    let _announcement = announce(&config.run_folders, &announced, &notes);
    let client = MasterClient::new(url, Some(master.token()))?;
    let submission = Submission::new(client.clone(), order, Stage::Submitting);
    // The work has its own task, so that an interrupt works even while a slow reader of stdout blocks the work.
    let mut work = tokio::spawn(submit_and_follow(submission, out));
    let outcome = tokio::select! {
        outcome = &mut work => Some(outcome.expect(NEVER_ABORTED)),
        error = master.died() => {
            work.abort();
            return Err(error);
        }
        () = interrupts.next() => None,
    };
    let (why, work) = match outcome {
        Some(Err(error)) if left_by_its_reader(&error, &client, &name).await => {
            let work = tokio::spawn(follow_unseen(client.clone(), name.clone(), notes.clone()));
            (": stdout is closed; interrupt to kill the job", work)
        }
        Some(outcome) => {
            past::keep(&client, &name, config, &notes).await;
            return outcome;
        }
        None => ("; interrupt again to kill the job", work),
    };
    notes.end_progress();
    notes.say(&format!("stopping job {name}{why}"));
    let job = Running { client: client.clone(), name: name.clone(), work, patience };
    let outcome = stop(master, job, interrupts, &notes).await;
    past::keep(&client, &name, config, &notes).await;
    outcome
}

/// Writes the file by which the user's other commands find the master. If that fails, the job still runs.
fn announce(run_folders: &[PathBuf], master: &Announced, notes: &Notes) -> Option<Announcement> {
    let written = Announcement::write(run_folders, master);
    written.inspect_err(|error| notes.say(&format!("commands in other terminals cannot find this job: {error}"))).ok()
}

const NEVER_ABORTED: &str = "a task is never awaited after its abort, and does not panic";

/// A job at a local master, and the task that submits and follows it.
struct Running {
    client: MasterClient,
    name: JobName,
    work: JoinHandle<Result<Exit, Error>>,
    /// Maximum time for the job to end.
    patience: Duration,
}

/// Cancels the job and follows the job to its end. Returns early after a second interrupt, the timeout, a failed cancel
/// or the master's death. A last line then says what happens to the job, or what failed.
async fn stop(
    master: &mut LocalMaster,
    job: Running,
    interrupts: &mut Interrupts,
    notes: &Notes,
) -> Result<Exit, Error> {
    let Running { client, name, mut work, patience } = job;
    let with_its_master = || format!("job {name} is killed when its local master stops");
    let in_order = async {
        match client.cancel(&name).await {
            Ok(()) => Ok((&mut work).await.expect(NEVER_ABORTED)),
            Err(error) if error.is_not_found() => Err(before_submitted(&name)),
            Err(error) => Err(format!("{error}; {}", with_its_master())),
        }
    };
    let outcome = tokio::select! {
        outcome = in_order => outcome,
        error = master.died() => Ok(Err(error)),
        () = tokio::time::sleep(patience) => Err(with_its_master()),
        () = interrupts.next() => Err(with_its_master()),
    };
    work.abort();
    outcome.unwrap_or_else(|closing| {
        notes.end_progress();
        notes.say(&closing);
        Ok(Exit::NotSucceeded)
    })
}

fn before_submitted(name: &JobName) -> String {
    format!("job {name} was stopped before it was submitted")
}
