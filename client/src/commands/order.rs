//! What is submitted: a job, or the TFJob of a file.

use std::sync::atomic::{AtomicBool, Ordering};

use master_client::{MasterClient, MasterError, OldJob, SubmitOutcome, tfjobs};
use protocol::dry_run::DryRun;
use protocol::error::{ErrorCode, Problem};
use protocol::ids::JobName;
use protocol::job::JobSpec;
use protocol::origin::{Origin, Warning};
use protocol::tfjob::TfJobRequest;
use protocol::view::JobState;
use serde_json::Value;

use super::bring::with_code;
use super::leaving::in_doubt;
use crate::code::pack::Packed;
use crate::ending::error::Error;
use crate::master::patience::persist;
use crate::output::Notes;
use crate::output::command_line::command;
use crate::request::again::about_code;

/// What is submitted.
pub(super) struct Order {
    /// The job's name.
    pub(super) name: JobName,
    pub(super) content: SubmitContent,
    /// The code that the job brings.
    pub(super) code: Option<Packed>,
    /// What the user must do after the master has accepted the job, if anything.
    pub(super) next_step: Option<String>,
}

/// What a submit sends, without code.
pub(super) enum SubmitContent {
    /// A job that the command line describes.
    Job(Box<JobSpec>),
    /// The TFJob of a file.
    TfJob(Box<TfJobRequest>),
}

impl SubmitContent {
    /// The content as JSON.
    pub(super) fn to_json(&self) -> Value {
        let content = match self {
            Self::Job(spec) => serde_json::to_value(spec),
            Self::TfJob(request) => serde_json::from_str(&request.document),
        };
        content.expect("specs always serialize, and documents are made from JSON")
    }
}

impl Order {
    /// A job that the command line describes, and the code that it brings.
    pub(super) fn of_job(spec: JobSpec, code: Option<Packed>) -> Self {
        Self { name: spec.name.clone(), content: SubmitContent::Job(Box::new(spec)), code, next_step: None }
    }

    /// The error if an earlier command submitted the same job, and the job has ended with this result.
    pub(super) fn already_ended(&self, result: JobState) -> Error {
        let name = &self.name;
        let (sentence, again) = match self.content {
            SubmitContent::Job(_) => (
                format!("job {name} has already ended ({result}); nothing was submitted"),
                "add --replace to run it again, or choose another --task".to_owned(),
            ),
            SubmitContent::TfJob(_) => {
                let delete = command(&format!("delete {name}"));
                (format!("tfjob {name} has already ended"), format!("to run it again, first delete it: {delete}"))
            }
        };
        Error::input(sentence).hint(format!("{again}; to see its output: {}", command(&format!("logs {name}"))))
    }

    /// The job as users call it.
    pub(super) fn title(&self) -> String {
        match self.content {
            SubmitContent::Job(_) => format!("job {}", self.name),
            SubmitContent::TfJob(_) => format!("tfjob/{}", self.name),
        }
    }

    /// The text of a warning about a field. In a job of `client spawn`, the fields of the pod come from the pod file,
    /// so the text names this file.
    pub(super) fn told(&self, warning: &Warning) -> String {
        let in_pod = warning.path.strip_prefix("groups[0].template.pod.");
        match (&self.content, in_pod) {
            (SubmitContent::Job(spec), Some(path)) if matches!(spec.origin, Some(Origin::Spawner { .. })) => {
                format!("pod file: {path}: {}", warning.sentence)
            }
            (SubmitContent::Job(_), _) => warning.to_string(),
            (SubmitContent::TfJob(_), _) => format!("tfjob {}: {warning}", self.name),
        }
    }

    /// Submits the job. While the master does not have the job's code, sends the code and submits again. Prints the
    /// master's warnings about fields.
    pub(super) async fn submit(&self, client: &MasterClient, notes: &Notes) -> Result<SubmitOutcome, MasterError> {
        let request = || self.submit_once(client, notes);
        with_code(client, self.code.as_ref(), notes, request, |sent| self.tell_sent(sent, notes)).await
    }

    fn tell_sent(&self, sent: &Result<String, MasterError>, notes: &Notes) {
        match sent {
            Ok(sentence) => notes.say(sentence),
            Err(_) => {
                notes.say(&format!("job {} was not submitted, because its code could not be sent", self.name));
            }
        }
    }

    async fn submit_once(&self, client: &MasterClient, notes: &Notes) -> Result<SubmitOutcome, MasterError> {
        // Whether an answer may have been lost after the master has accepted the job.
        let is_in_doubt = AtomicBool::new(false);
        let note = |error: &MasterError| {
            is_in_doubt.fetch_or(error.leaves_doubt(), Ordering::Relaxed);
        };
        let outcome = persist(notes, async || self.request_once(client).await.inspect_err(note)).await;
        let is_in_doubt = is_in_doubt.into_inner();
        let (submitted, warnings) = outcome.inspect_err(|error| {
            if is_in_doubt && error.is_transient() {
                notes.say(&in_doubt(self.name.as_str()));
            }
        })?;
        warnings.iter().for_each(|warning| notes.say(&self.told(warning)));
        Ok(if is_in_doubt { submitted.after_doubt() } else { submitted })
    }

    async fn request_once(&self, client: &MasterClient) -> Result<(SubmitOutcome, Vec<Warning>), MasterError> {
        match &self.content {
            SubmitContent::Job(spec) => {
                let submitted = client.submit(spec).await?;
                let warnings = submitted.view().warnings.clone();
                Ok((submitted, warnings))
            }
            SubmitContent::TfJob(request) => tfjobs::apply(client, request).await,
        }
    }

    /// Asks the master whether it would accept the job.
    pub(super) async fn check(&self, client: &MasterClient, old: OldJob) -> Result<DryRun, MasterError> {
        match &self.content {
            SubmitContent::Job(spec) => client.dry_run(spec, old).await,
            SubmitContent::TfJob(request) => tfjobs::dry_run(client, request).await,
        }
    }

    /// Makes sure that the master will accept this job after the old job with its name is deleted. Sends the job's
    /// code, because the master could refuse the code too.
    pub(super) async fn make_ready(&self, client: &MasterClient, notes: &Notes) -> Result<(), Error> {
        let check = || self.check_with_code(client, notes);
        let ready = with_code(client, self.code.as_ref(), notes, check, |sent| self.tell_sent(sent, notes)).await;
        ready.map_err(|error| about_code(error.into()))
    }

    /// Checks the job. If the master lacks the code, returns the error that a submit would return.
    async fn check_with_code(&self, client: &MasterClient, notes: &Notes) -> Result<(), MasterError> {
        let checked = persist(notes, || self.check(client, OldJob::IsDeletedFirst)).await?;
        if !checked.lacks_code {
            return Ok(());
        }
        let name = &self.name;
        let detail = format!("this master does not have the code of job {name}; no job was deleted or submitted");
        Err(MasterError::Refused(Problem { status: 409, code: ErrorCode::CodeMissing, detail }))
    }
}
