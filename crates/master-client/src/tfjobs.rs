//! The requests about TFJobs.

use protocol::dry_run::DryRun;
use protocol::ids::JobName;
use protocol::origin::Warning;
use protocol::patch::JobPatch;
use protocol::routes::{TFJOB_DRY_RUNS, TFJOBS};
use protocol::tfjob::{TfJobAnswer, TfJobList, TfJobRequest};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::client::{MasterClient, SubmitOutcome, of_job};
use crate::error::MasterError;

/// Submits a TFJob. Returns the job, and warnings about fields that have another meaning in Muster.
///
/// # Errors
/// See [`MasterError`].
pub async fn apply(client: &MasterClient, tfjob: &TfJobRequest) -> Result<(SubmitOutcome, Vec<Warning>), MasterError> {
    let transport = &client.transport;
    let (status, answer) = transport.status_and_json(transport.request(Method::POST, TFJOBS).json(tfjob)).await?;
    let TfJobAnswer { job, change, warnings } = answer;
    let submitted = match status {
        StatusCode::CREATED => SubmitOutcome::New(job),
        _ if change == JobPatch::default() => SubmitOutcome::Before(job),
        _ => SubmitOutcome::Changed { job, change },
    };
    Ok((submitted, warnings))
}

/// Asks the master whether it would accept a TFJob.
///
/// # Errors
/// See [`MasterError`].
pub async fn dry_run(client: &MasterClient, tfjob: &TfJobRequest) -> Result<DryRun, MasterError> {
    client.transport.json(client.transport.request(Method::POST, TFJOB_DRY_RUNS).json(tfjob)).await
}

/// All TFJobs.
///
/// # Errors
/// See [`MasterError`].
pub async fn list(client: &MasterClient) -> Result<TfJobList, MasterError> {
    client.transport.get(TFJOBS).await
}

/// One job as a TFJob.
///
/// # Errors
/// See [`MasterError`].
pub async fn show(client: &MasterClient, name: &JobName) -> Result<Value, MasterError> {
    client.transport.get(&of_job(name, "/tfjob")).await
}
