//! Submits a job to a master that already runs, and follows it.

use std::slice;

use master_client::log_stream::WantedLines;
use master_client::{MasterClient, MasterError, SubmitOutcome};
use protocol::ids::JobName;
use protocol::view::JobView;
use tokio::sync::watch;

use super::bring;
use super::delete::delete_if_there;
use super::leaving::{Stage, farewell, left_by_its_reader, to_follow, unless_interrupted};
use super::order::Order;
use crate::code::pack::Packed;
use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::follow::{Following, follow, or_deleted};
use crate::output::{Format, LogLines, Notes, Output, ShownRanks, narrate};

/// A job to submit to a master that already runs.
pub(super) struct Submission {
    client: MasterClient,
    order: Order,
    /// The stage of the submit, for the sentence after an interrupt.
    stage: watch::Sender<Stage>,
}

impl Submission {
    /// If the first stage is [`Stage::Checking`], the job replaces the old job that has the same name.
    pub(super) fn new(client: MasterClient, order: Order, first: Stage) -> Self {
        Self { client, order, stage: watch::Sender::new(first) }
    }
}

/// What a command does after the master has accepted its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Follow,
    Return,
}

/// Submits a job to a master that already runs.
pub(super) async fn at_running_master(submission: Submission, then: Then, out: Output) -> Result<Exit, Error> {
    let (name, notes, client) = (submission.order.name.clone(), out.notes.clone(), submission.client.clone());
    let standing = submission.stage.subscribe();
    let work = async move {
        match then {
            Then::Follow => submit_and_follow(submission, out).await,
            Then::Return => hand_over(submission, out).await,
        }
    };
    let stage = || *standing.borrow();
    match unless_interrupted(work, slice::from_ref(&name), stage, &notes).await {
        Err(error) if stage() == Stage::Following => {
            if left_by_its_reader(&error, &client, &name).await {
                notes.say(&farewell(Stage::Following, slice::from_ref(&name)));
            }
            Err(lost_sight(error, &name, &notes))
        }
        outcome => outcome,
    }
}

/// The error for an accepted job that can no longer be followed.
fn lost_sight(error: Error, name: &JobName, notes: &Notes) -> Error {
    if let Cause::Master(error) = &error.cause {
        way_back(error, name).iter().for_each(|sentence| notes.say(sentence));
    }
    or_deleted(error, name)
}

/// A sentence with the command that follows the job again. `None` if a retry after this error cannot succeed.
fn way_back(error: &MasterError, name: &JobName) -> Option<String> {
    let way = || format!("job {name} may still be running; to follow it: {}", to_follow(name));
    error.is_transient().then(way)
}

async fn submit(submission: Submission, notes: &Notes) -> Result<(MasterClient, JobView, Option<Packed>), Error> {
    let Submission { client, order, stage } = submission;
    if *stage.borrow() == Stage::Checking {
        order.make_ready(&client, notes).await?;
        stage.send_replace(Stage::Replacing);
        delete_if_there(&client, &order.name, notes).await?;
        stage.send_replace(Stage::Submitting);
    }
    let submitted = order.submit(&client, notes).await?;
    stage.send_replace(Stage::Following);
    let view = match submitted {
        SubmitOutcome::New(view) => {
            notes.say(&narrate::accepted(&view));
            narrate::where_it_runs(&view)
                .iter()
                .for_each(|folder| notes.say(&format!("job {} runs in {folder}", view.name)));
            view
        }
        // The script may have changed since the earlier submit, so the earlier result may be outdated.
        SubmitOutcome::Before(JobView { result: Some(result), .. }) => return Err(order.already_ended(result.state())),
        SubmitOutcome::Before(view) => {
            notes.say(&narrate::submitted_before(&view));
            view
        }
        SubmitOutcome::Changed { job, change } => {
            notes.say(&format!("tfjob/{} {}", job.name, narrate::changed(change)));
            job
        }
    };
    order.next_step.iter().for_each(|sentence| notes.say(sentence));
    Ok((client, view, order.code))
}

/// `--detach`: prints the job's name on stdout, for scripts.
async fn hand_over(submission: Submission, out: Output) -> Result<Exit, Error> {
    let Output { format, mut data, notes } = out;
    let (_, view, _) = submit(submission, &notes).await?;
    notes.say(&format!("to follow the job: {}", to_follow(&view.name)));
    data.show(format, &view, || view.name.to_string())?;
    Ok(Exit::Done)
}

pub(super) async fn submit_and_follow(submission: Submission, out: Output) -> Result<Exit, Error> {
    let Output { format, mut data, notes } = out;
    let (client, first, code) = submit(submission, &notes).await?;
    data.log_lines_as(LogLines::prefixed(&first.spec));
    if first.spec.nproc_per_node == 1 {
        // The labels of such a job are the script's own.
        data.show_ranks(ShownRanks::All);
    }
    let logs = if format == Format::Json { None } else { Some(WantedLines::default()) };
    if logs.is_some() {
        data.go_on_if_unwritten(&notes);
    }
    let wanted = watch::Sender::new(None);
    let send_again = bring::send_again(&client, code, wanted.subscribe(), &notes);
    let following = Following { client: client.clone(), first, is_told: false, logs, wanted };
    let ended: JobView = tokio::select! {
        ended = follow(following, &mut data, &notes) => ended?,
        never = send_again => match never {},
    };
    if format == Format::Json {
        data.json(&ended)?;
    }
    Ok(ended.state.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_whose_master_does_not_return_tells_how_to_follow_the_job_later() {
        let url = || "http://h:1".into();
        let name = "alone".parse().unwrap();
        let sentence = "job alone may still be running; to follow it: client logs alone -f";
        let away = MasterError::Silent { url: url() };
        assert_eq!(way_back(&away, &name).as_deref(), Some(sentence));
        assert_eq!(way_back(&MasterError::NotAMaster { url: url(), status: 200 }, &name), None);
    }
}
