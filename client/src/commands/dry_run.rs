//! `--dry-run`: checks a submit and prints what it would create, but creates nothing.

use launchers::kubeflow::{self, Read, ReplicaHost};
use launchers::template::Note;
use master_client::{MasterClient, MasterError, OldJob};
use protocol::dry_run::{DryRun, PodsOfKind};
use protocol::master::BackendKind;
use protocol::origin::Warning;
use protocol::patch::JobPatch;
use protocol::tfjob::TfJobRequest;
use serde_json::Value;

use super::order::Order;
use crate::args::Checker;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::{Format, Output, narrate, yaml};

/// Lets the master check an order if `checker` is the server.
pub(super) async fn check(
    order: &Order,
    checker: Checker,
    client: &MasterClient,
    old: OldJob,
) -> Result<Option<DryRun>, MasterError> {
    match checker {
        Checker::Client => Ok(None),
        Checker::Server => order.check(client, old).await.map(Some),
    }
}

/// The answer without a master. Only a running master can be asked.
pub(super) fn without_master(checker: Checker) -> Result<Option<DryRun>, Error> {
    match checker {
        Checker::Client => Ok(None),
        Checker::Server => Err(Error::input("--dry-run=server needs a running master, and none is given")
            .hint("give --master URL, or let this machine check the job with --dry-run=client")),
    }
}

/// Where the TFJobs of a dry run would run.
pub(super) struct DryRunTarget {
    pub(super) backend: BackendKind,
    /// The master's namespace. `None` if it is not known.
    pub(super) namespace: Option<String>,
}

/// Checks a TFJob on this machine by the master's rules. Returns sentences about its fields. An error is the sentence
/// with which the master would refuse the TFJob.
pub(super) fn check_here(request: &TfJobRequest, target: &DryRunTarget) -> Result<Vec<String>, String> {
    let refusal = |notes: Vec<Note>| kubeflow::refusal(&notes);
    let in_cluster = kubeflow::read(request, &in_cluster(request, target.namespace.as_ref())).map_err(refusal);
    let told = |read: &Read| read.warnings().iter().map(Warning::to_string).collect::<Vec<_>>();
    match target.backend {
        BackendKind::Kubernetes => Ok(told(&in_cluster?)),
        BackendKind::Process | BackendKind::Joined => {
            let here = kubeflow::read(request, &ReplicaHost::Processes).map_err(refusal)?;
            let elsewhere = in_cluster.err().map(|refused| format!("in a cluster, {refused}"));
            Ok(told(&here).into_iter().chain(elsewhere).collect())
        }
    }
}

/// The pods of a cluster. Without a known namespace, the namespace that the TFJob names.
fn in_cluster(request: &TfJobRequest, namespace: Option<&String>) -> ReplicaHost {
    let document: Value = serde_json::from_str(&request.document).unwrap_or_default();
    let of_document = document["metadata"]["namespace"].as_str();
    let asked = request.options.namespace.as_deref().or(of_document).unwrap_or_default();
    ReplicaHost::Pods { namespace: namespace.map_or(asked, String::as_str).to_owned(), honours_root: true }
}

/// Prints what the order would create, and what the master has said.
pub(super) fn show(order: &Order, checked: Option<&DryRun>, out: &mut Output) -> Result<Exit, Error> {
    let Output { format, data, notes } = out;
    notes.say(&sentence(order, checked));
    for warning in checked.iter().flat_map(|checked| &checked.warnings) {
        notes.say(&order.told(warning));
    }
    match (checked, format) {
        (Some(checked), Format::Json) => data.json(checked)?,
        (None, Format::Json) => data.json(&order.content.to_json())?,
        (Some(DryRun { pods, .. }), Format::Text) if !pods.is_empty() => {
            pods.iter().try_for_each(|kind| data.text(&document_of_pods(kind)))?;
        }
        (Some(_) | None, Format::Text) => data.text(&document(&order.content.to_json()))?,
    }
    Ok(Exit::Done)
}

fn sentence(order: &Order, checked: Option<&DryRun>) -> String {
    let job = order.title();
    let Some(checked) = checked else {
        return format!("{job}: checked on this machine, nothing was submitted (dry run)");
    };
    match (checked.on_record, checked.change == JobPatch::default(), checked.lacks_code) {
        (true, true, _) => format!("{job} is on record: a submit would change nothing (dry run)"),
        (true, false, _) => format!("{job} would be {} (dry run)", narrate::changed(checked.change)),
        (false, _, true) => format!("{job} would be created, after the upload of its code (dry run)"),
        (false, _, false) => format!("{job} would be created (dry run)"),
    }
}

/// One document of a stream of YAML documents.
fn document(object: &Value) -> String {
    format!("---\n{}", yaml(object))
}

fn document_of_pods(PodsOfKind { count, first }: &PodsOfKind) -> String {
    let pods = if *count == 1 { "1 pod".to_owned() } else { format!("{count} pods such as this one") };
    format!("---\n# {pods}\n{}", yaml(first))
}
