//! Brings a job's own code to a master: packs the code, and sends the files that the master does not have.

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use protocol::code::CodeId;
use protocol::dry_run::DryRun;
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use protocol::job::{JobRequest, JobSpec};
use protocol::master::BackendKind;
use protocol::origin::{Origin, Warning};
use protocol::tfjob::TfJobRequest;
use protocol::view::JobState;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::leaving::in_doubt;
use super::machines;
use super::syntax::{self, Syntax};
use crate::address::master_url::MasterUrl;
use crate::args::ImageArgs;
use crate::code::pack::Packed;
use crate::ending::error::{Error, MasterError};
use crate::master::client::{MasterClient, OldJob, Submitted};
use crate::master::patience::persist;
use crate::output::command_line::command;
use crate::output::{Notes, size, spelled};
use crate::request::script::Named;

/// Maximum number of uploads. During an upload, the master may remove blobs that it had before. The next upload then
/// sends these blobs.
const UPLOADS_MAX: usize = 3;

/// Packs the code in the job's folder, and checks its script if pods will run the code: a mistake would be found only
/// after the image pull. A master with processes checks the script itself, with the Python that runs it. Returns
/// the request with the id of the code, and the code.
pub(super) async fn with_code(
    request: JobRequest,
    named: Named,
    (backend, image, syntax): (BackendKind, ImageArgs, Syntax),
) -> Result<(JobRequest, Packed), Error> {
    let request = match backend {
        BackendKind::Process | BackendKind::Joined => request,
        BackendKind::Kubernetes => {
            if let Some(flag) = image.given_for_wrapping() {
                let sentence = format!(
                    "{flag} cannot be used with a script or --code: pods of such a job run the image unmodified, and \
                     nodes pull it"
                );
                return Err(Error::input(sentence).hint(format!("leave out {flag}, or the script and --code")));
            }
            let no_image = || {
                Error::input("no image to run: a job that brings its code to Kubernetes needs --image")
                    .hint("give an image with Python, for example --image tensorflow/tensorflow:2.21.0")
            };
            JobRequest { image: Some(image.image.ok_or_else(no_image)?), ..request }
        }
    };
    let script = named.script.clone();
    let packing = spawn_blocking(move || Packed::read(&named.folder, &named.script));
    let packed = packing.await.expect("packing does not panic")?;
    if backend == BackendKind::Kubernetes && syntax == Syntax::Checked {
        syntax::check_script(&packed, script.as_str()).await?;
    }
    Ok((JobRequest { code: Some(packed.id()), ..request }, packed))
}

/// What is submitted.
pub(super) enum Order {
    /// A job that the command line describes.
    Job {
        /// The job.
        spec: Box<JobSpec>,
        /// The code that the job brings.
        code: Option<Packed>,
    },
    /// A job on machines that join it. Each machine has its own script.
    OnMachines {
        /// The job.
        spec: Box<JobSpec>,
    },
    /// The TFJob of a file.
    TfJob {
        /// The job's name.
        name: JobName,
        /// The request to the master.
        request: Box<TfJobRequest>,
        /// The code that the job brings.
        code: Option<Packed>,
    },
}

impl Order {
    /// The job's name.
    pub(super) fn name(&self) -> &JobName {
        match self {
            Self::Job { spec, .. } | Self::OnMachines { spec } => &spec.name,
            Self::TfJob { name, .. } => name,
        }
    }

    /// The error if an earlier command submitted the same job, and the job has ended with this result.
    pub(super) fn already_ended(&self, result: JobState) -> Error {
        let name = self.name();
        let logs = command(&format!("logs {name}"));
        match self {
            Self::Job { .. } | Self::OnMachines { .. } => {
                let sentence = format!("job {name} has already ended ({result}); nothing was submitted");
                let again = "add --replace to run it again, or choose another --task";
                Error::input(sentence).hint(format!("{again}; to see its output: {logs}"))
            }
            Self::TfJob { .. } => {
                let delete = command(&format!("delete {name}"));
                let again = format!("to run it again, first delete it: {delete}");
                Error::input(format!("tfjob {name} has already ended"))
                    .hint(format!("{again}; to see its output: {logs}"))
            }
        }
    }

    /// What the user must do after the master at this address has accepted the job, if anything.
    pub(super) fn next_step(&self, master: &MasterUrl) -> Option<String> {
        match self {
            Self::OnMachines { spec } => Some(machines::how_to_join(&spec.name, master)),
            Self::Job { .. } | Self::TfJob { .. } => None,
        }
    }

    /// The code that the job brings, to send it again.
    pub(super) fn into_code(self) -> Option<Packed> {
        match self {
            Self::Job { code, .. } | Self::TfJob { code, .. } => code,
            Self::OnMachines { .. } => None,
        }
    }

    /// The code that the job brings.
    fn code(&self) -> Option<&Packed> {
        match self {
            Self::Job { code, .. } | Self::TfJob { code, .. } => code.as_ref(),
            Self::OnMachines { .. } => None,
        }
    }

    /// What a submit sends, without code.
    pub(super) fn content(&self) -> Value {
        let content = match self {
            Self::Job { spec, .. } | Self::OnMachines { spec } => serde_json::to_value(spec),
            Self::TfJob { request, .. } => serde_json::from_str(&request.document),
        };
        content.expect("specs always serialize, and documents are made from JSON")
    }

    /// The job as users call it.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Job { spec, .. } | Self::OnMachines { spec } => format!("job {}", spec.name),
            Self::TfJob { name, .. } => format!("tfjob/{name}"),
        }
    }

    /// The text of a warning about a field.
    pub(super) fn told(&self, warning: &Warning) -> String {
        match self {
            Self::Job { spec, .. } | Self::OnMachines { spec } => told(warning, spec.origin.as_ref()),
            Self::TfJob { name, .. } => format!("tfjob {name}: {warning}"),
        }
    }

    /// Submits the job. If the master does not have the job's code, sends the code and submits again. Prints the
    /// master's warnings about fields.
    pub(super) async fn submit(&self, client: &MasterClient, notes: &Notes) -> Result<Submitted, MasterError> {
        match (self.submit_once(client, notes).await, self.code()) {
            (Err(MasterError::Refused(problem)), Some(code)) if problem.code == ErrorCode::CodeMissing => {
                let sent = send(client, code).await.inspect_err(|_| {
                    notes.say(&format!("job {} was not submitted, because its code could not be sent", self.name()));
                });
                notes.say(&sent?);
                self.submit_once(client, notes).await
            }
            (outcome, _) => outcome,
        }
    }

    async fn submit_once(&self, client: &MasterClient, notes: &Notes) -> Result<Submitted, MasterError> {
        // Whether an answer may have been lost after the master has accepted the job.
        let is_in_doubt = AtomicBool::new(false);
        let note = |error: &MasterError| {
            is_in_doubt.fetch_or(error.leaves_doubt(), Ordering::Relaxed);
        };
        let outcome = persist(notes, async || self.request_once(client).await.inspect_err(note)).await;
        let is_in_doubt = is_in_doubt.into_inner();
        let (submitted, warnings) = outcome.inspect_err(|error| {
            if is_in_doubt && error.is_transient() {
                notes.say(&in_doubt(self.name().as_str()));
            }
        })?;
        warnings.iter().for_each(|warning| notes.say(&self.told(warning)));
        Ok(if is_in_doubt { submitted.after_doubt() } else { submitted })
    }

    async fn request_once(&self, client: &MasterClient) -> Result<(Submitted, Vec<Warning>), MasterError> {
        match self {
            Self::Job { spec, .. } | Self::OnMachines { spec } => {
                let submitted = client.submit(spec).await?;
                let warnings = submitted.view().warnings.clone();
                Ok((submitted, warnings))
            }
            Self::TfJob { request, .. } => client.apply(request).await,
        }
    }

    /// Asks the master whether it would accept the job.
    pub(super) async fn check(&self, client: &MasterClient, old: OldJob) -> Result<DryRun, MasterError> {
        match self {
            Self::Job { spec, .. } | Self::OnMachines { spec } => client.dry_run(spec, old).await,
            Self::TfJob { request, .. } => client.dry_run_of_tfjob(request).await,
        }
    }

    /// Makes sure that the master will accept this job after the old job with its name is deleted. Sends the job's code,
    /// so that nothing is left that the master could refuse.
    pub(super) async fn make_ready(&self, client: &MasterClient, notes: &Notes) -> Result<(), Error> {
        let check = async || persist(notes, || self.check(client, OldJob::IsDeletedFirst)).await;
        let mut lacks_code = check().await?.lacks_code;
        if let Some(code) = self.code().filter(|_| lacks_code) {
            notes.say(&send(client, code).await?);
            lacks_code = check().await?.lacks_code;
        }
        if !lacks_code {
            return Ok(());
        }
        let name = self.name();
        let sentence = format!("the master does not keep the code of job {name}, so no job was deleted or submitted");
        Err(Error::master(sentence))
    }
}

/// The text of a warning about a field. In a job of `client spawn`, the fields of the pod come from the pod file, so
/// the text names this file.
fn told(warning: &Warning, origin: Option<&Origin>) -> String {
    let in_file = warning.path.strip_prefix("groups[0].template.pod.");
    match (in_file, origin) {
        (Some(path), Some(Origin::Spawner { .. })) => format!("pod file: {path}: {}", warning.sentence),
        (Some(_) | None, _) => warning.to_string(),
    }
}

/// Sends the code again whenever the master wants it because it has lost the code. Never returns.
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

/// Sends the code. If blobs are missing after an upload, sends them in the next upload. Returns a sentence about all
/// uploads.
pub(super) async fn send(client: &MasterClient, code: &Packed) -> Result<String, MasterError> {
    let begun = Instant::now();
    let mut missing = client.put_manifest(code.id(), code.manifest()).await?;
    let (mut sent, mut bytes) = (0, 0);
    for _ in 0..UPLOADS_MAX {
        if missing.is_empty() {
            break;
        }
        let (blobs, stream) = code.stream(&missing);
        (sent, bytes) = (sent + blobs, bytes + stream.len() as u64);
        missing = client.put_blobs(code.id(), stream).await?;
    }
    let (files, took) = (code.manifest().files().len(), spelled(begun.elapsed()));
    Ok(format!("code of {files} files: sent {sent} of them, {}, in {took}", size(bytes)))
}
