//! `apply`: submits the TFJobs in files. The master translates them into jobs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use launchers::template::not_text;
use master_client::{MasterClient, MasterError, OldJob, SubmitOutcome};
use protocol::dry_run::DryRun;
use protocol::error::{ErrorCode, Problem};
use protocol::ids::JobName;
use protocol::image::Entrypoint;
use protocol::master::BackendKind;
use protocol::tfjob::{TfJobOptions, TfJobRequest};

use super::dry_run::{self, DryRunTarget};
use super::leaving::Stage;
use super::order::{Order, SubmitContent};
use super::own_master::at_own_master;
use super::submission::{Submission, Then, at_running_master};
use super::submit::LOCAL_BY_DEFAULT;
use super::{bring, current_folder};
use crate::address::config::{ClientConfig, LocalBecause, MasterChoice, variable_to_pass_on};
use crate::args::{ApplyArgs, Checker, SyntaxArgs};
use crate::code::pack::Packed;
use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::image;
use crate::master::patience::persist;
use crate::masters::which_master::{running_master, with_namespace};
use crate::output::{Data, Format, Notes, Output, command_line, narrate};
use crate::request;
use crate::request::tfjob::{self, FileObject};

pub(super) async fn run(args: ApplyArgs, config: &ClientConfig, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let here = current_folder()?;
    let (mut documents, others) = tfjob::only_tfjobs(tfjob::read(&args.files, &here)?, &args.files)?;
    for document in &mut documents {
        document.name_it(&request::tail(uuid::Uuid::new_v4().into_bytes()));
    }
    let given = &config.master;
    let config = &with_namespace(config, args.namespace.as_ref());
    command_line::remember_choice(given, &config.master);
    let entrypoints = entrypoints(&mut documents, config, notes).await;
    let code = args.code.as_deref().map(tfjob::code_folder).transpose()?;
    let files = Files { entrypoints, code, syntax: args.syntax, notes: notes.clone() };
    let options = options(&args)?;
    let mut out = Output { format: Format::Text, data, notes: notes.clone() };
    if args.dry_run.dry_run == Some(Checker::Client) {
        let target = target(config, notes).await?;
        tell_left_out(&others, target.backend, notes);
        let documents =
            if matches!(config.master, MasterChoice::Local(_)) { vec![only(documents)?] } else { documents };
        return checked_here(&files.orders(documents, target.backend, &options).await?, &target, &mut out);
    }
    let Some(client) = running_master(config).await? else {
        if let Some(checker) = args.dry_run.dry_run {
            dry_run::without_master(checker)?;
        }
        tell_left_out(&others, BackendKind::Process, notes);
        let NamedTfJob { origin, order } = files.order(only(documents)?, BackendKind::Process, options).await?;
        if config.master == MasterChoice::Local(LocalBecause::Default) {
            notes.say(LOCAL_BY_DEFAULT);
        }
        return followed(at_own_master(order, config, out).await, &origin);
    };
    let backend = persist(notes, || client.about()).await?.backend;
    tell_left_out(&others, backend, notes);
    if let Some(checker) = args.dry_run.dry_run {
        let orders = files.orders(documents, backend, &options).await?;
        let mut checks = vec![];
        for NamedTfJob { origin, order } in &orders {
            let answer = dry_run::check(order, checker, &client, OldJob::Stays).await;
            checks.push(answer.map_err(|error| of_document(error, origin))?);
        }
        return show_all(&orders, checks, &mut out);
    }
    if args.follow {
        let NamedTfJob { origin, order } = files.order(only(documents)?, backend, options).await?;
        let submission = Submission::new(client, order, Stage::Submitting);
        return followed(at_running_master(submission, Then::Follow, out).await, &origin);
    }
    send_all(&client, files.orders(documents, backend, &options).await?, out).await
}

/// Where the client takes the TFJobs of a dry run to run. Asks the master only if it has an address.
async fn target(config: &ClientConfig, notes: &Notes) -> Result<DryRunTarget, Error> {
    if let MasterChoice::Kube(place) = &config.master {
        return Ok(DryRunTarget { backend: BackendKind::Kubernetes, namespace: place.namespace.clone() });
    }
    let backend = match running_master(config).await? {
        Some(client) => persist(notes, || client.about()).await?.backend,
        None => BackendKind::Process,
    };
    Ok(DryRunTarget { backend, namespace: None })
}

/// Says which objects are left out because they are not TFJobs.
fn tell_left_out(others: &[String], backend: BackendKind, notes: &Notes) {
    let why = match backend {
        BackendKind::Process | BackendKind::Joined => "without a cluster, only TFJobs have a meaning",
        BackendKind::Kubernetes => "if the TFJobs need them, run kubectl apply for them first",
    };
    if !others.is_empty() {
        notes.say(&format!("left out {}: {why}", others.join(", ")));
    }
}

/// The programs that images run, for containers without a command. If the program of an image is not known, the master
/// refuses the TFJob.
async fn entrypoints(
    documents: &mut [FileObject],
    config: &ClientConfig,
    notes: &Notes,
) -> BTreeMap<String, Entrypoint> {
    let images = documents.iter_mut().flat_map(FileObject::images_without_command).collect();
    image::programs(&images, &config.image, notes).await
}

fn options(args: &ApplyArgs) -> Result<TfJobOptions, Error> {
    let env = request::variables(args.env.clone(), None, &variable_to_pass_on)?;
    Ok(TfJobOptions {
        namespace: args.namespace.clone(),
        allow_root: args.allow_root,
        env,
        allow_env: args.allow_env.iter().cloned().collect(),
        max_restarts: args.max_restarts,
        evaluator_grace_seconds: args.evaluator_grace,
        ..TfJobOptions::default()
    })
}

fn only(documents: Vec<FileObject>) -> Result<FileObject, Error> {
    let several = documents.len();
    let refused = || {
        let limits = "but a local master runs only one, and --follow follows only one";
        Error::input(format!("{several} TFJobs are given, {limits}"))
            .hint("give one TFJob; to start several, give --master URL and no --follow")
    };
    documents.into_iter().next().filter(|_| several == 1).ok_or_else(refused)
}

/// A TFJob to send, and the file that it comes from.
struct NamedTfJob {
    origin: String,
    order: Order,
}

/// What this machine adds to each TFJob.
struct Files {
    /// The programs that images run.
    entrypoints: BTreeMap<String, Entrypoint>,
    /// The folder of `--code`.
    code: Option<PathBuf>,
    /// Whether the scripts in this folder must parse.
    syntax: SyntaxArgs,
    notes: Notes,
}

impl Files {
    async fn orders(
        &self,
        documents: Vec<FileObject>,
        backend: BackendKind,
        options: &TfJobOptions,
    ) -> Result<Vec<NamedTfJob>, Error> {
        let mut orders = vec![];
        for document in documents {
            orders.push(self.order(document, backend, options.clone()).await?);
        }
        Ok(orders)
    }

    /// The request for a document. Reads the code that the job brings, and checks its script.
    async fn order(
        &self,
        document: FileObject,
        backend: BackendKind,
        options: TfJobOptions,
    ) -> Result<NamedTfJob, Error> {
        let mut document = document;
        let origin = document.origin.clone();
        let folder = self.code.as_deref().unwrap_or(Path::new(&document.folder)).to_owned();
        if backend == BackendKind::Process {
            let told = document.without_images(&self.entrypoints, self.code.as_deref())?;
            told.iter().for_each(|told| self.notes.say(told));
        }
        let given = &document.object["metadata"]["name"];
        if !given.is_null() && !given.is_string() {
            return Err(Error::input(format!("{origin}: metadata.name: {}", not_text(given))));
        }
        let name: Result<JobName, _> = document.name().parse();
        let name = name.map_err(|error| Error::input(format!("{origin}: metadata.name: {error}")))?;
        let code = match &self.code {
            Some(folder) if backend == BackendKind::Kubernetes => {
                let (script, told) = document.with_code(&self.entrypoints, folder)?;
                told.iter().for_each(|told| self.notes.say(told));
                Some((bring::pack(folder.clone(), &script, self.syntax, &self.notes).await?, script))
            }
            Some(_) | None => None,
        };
        let (code, script) = code.unzip();
        let options = TfJobOptions { work_dir: Some(folder), code: code.as_ref().map(Packed::id), script, ..options };
        let request =
            TfJobRequest { document: document.object.to_string(), entrypoints: self.entrypoints.clone(), options };
        let content = SubmitContent::TfJob(Box::new(request));
        Ok(NamedTfJob { origin, order: Order { name, content, code, next_step: None } })
    }
}

/// Checks the TFJobs on this machine, and prints what would be sent.
fn checked_here(orders: &[NamedTfJob], target: &DryRunTarget, out: &mut Output) -> Result<Exit, Error> {
    for NamedTfJob { origin, order } in orders {
        let SubmitContent::TfJob(request) = &order.content else { continue };
        let told = dry_run::check_here(request, target).map_err(|why| Error::input(format!("{origin}: {why}")))?;
        told.iter().for_each(|told| out.notes.say(&format!("tfjob {}: {told}", order.name)));
    }
    show_all(orders, orders.iter().map(|_| None).collect(), out)
}

/// Prints what each TFJob would create, and what the master has said about it.
fn show_all(orders: &[NamedTfJob], checks: Vec<Option<DryRun>>, out: &mut Output) -> Result<Exit, Error> {
    for (NamedTfJob { order, .. }, checked) in orders.iter().zip(checks) {
        dry_run::show(order, checked.as_ref(), out)?;
    }
    Ok(Exit::Done)
}

/// Sends the TFJobs. If there are several, first asks the master to check all of them.
async fn send_all(client: &MasterClient, orders: Vec<NamedTfJob>, out: Output) -> Result<Exit, Error> {
    let Output { mut data, notes, .. } = out;
    if orders.len() > 1 {
        for NamedTfJob { origin, order } in &orders {
            persist(&notes, || order.check(client, OldJob::Stays)).await.map_err(|error| of_document(error, origin))?;
        }
    }
    for NamedTfJob { origin, order } in &orders {
        let submitted = order.submit(client, &notes).await.map_err(|error| of_document(error, origin))?;
        data.text(&match submitted {
            SubmitOutcome::New(job) => format!("tfjob/{} created", job.name),
            SubmitOutcome::Before(job) => format!("tfjob/{} is up to date", job.name),
            SubmitOutcome::Changed { job, change } => format!("tfjob/{} {}", job.name, narrate::changed(change)),
        })?;
    }
    Ok(Exit::Done)
}

/// The outcome of a TFJob that was followed. Replaces the errors whose hints name flags that `apply` does not have.
fn followed(outcome: Result<Exit, Error>, origin: &str) -> Result<Exit, Error> {
    match outcome {
        Err(Error { cause: Cause::Master(error), .. }) => Err(of_document(*error, origin)),
        outcome => outcome,
    }
}

/// If the master refuses the document, adds the document's file to the error.
fn of_document(error: MasterError, origin: &str) -> Error {
    let is_about_document = |problem: &Problem| problem.status == 422 || problem.code == ErrorCode::JobExists;
    if let MasterError::Refused(problem) = &error
        && is_about_document(problem)
    {
        return Error::input(format!("{origin}: {}", problem.detail));
    }
    error.into()
}
