//! Submits a script as a job, to a master that already runs or to a new local master. The script is in a folder or in
//! an image.

use std::path::{Path, PathBuf};

use master_client::{MasterClient, OldJob};
use protocol::about::About;
use protocol::agent::first_python;
use protocol::group::Group;
use protocol::image::ImageRef;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::master::{BackendKind, MasterView};
use protocol::run_policy::OnUnreachable;

use super::leaving::Stage;
use super::order::Order;
use super::own_master::at_own_master;
use super::submission::{Submission, Then, at_running_master};
use super::{bring, current_folder, dry_run, in_place, machines};
use crate::address::config::{ClientConfig, ImageConfig, LocalBecause, MasterChoice, own_path, variable_to_pass_on};
use crate::args::{Checker, ImageArgs, JobFlags, SubmitArgs, SyntaxArgs};
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::image::{self, ImageOrder};
use crate::master::announcement::own_uid;
use crate::master::patience::persist;
use crate::masters::which_master::{START_A_MASTER, running_master};
use crate::output::{Data, Notes, Output};
use crate::request::script::{self, Named};
use crate::request::{self, about, name_after};

/// Printed when neither a flag nor a variable names a master.
pub(super) const LOCAL_BY_DEFAULT: &str =
    "no --master and no MUSTER_MASTER: running the job on this machine, with a local master";

pub(super) async fn run(args: SubmitArgs, config: &ClientConfig, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let mut out = Output { format: args.format.output, data, notes: notes.clone() };
    if out.data.is_for_terminal() {
        out.data.show_ranks(args.show);
    }
    let (image, syntax, on_unreachable) = (args.image, args.code.syntax, args.job.policy.on_unreachable);
    let (detach, replace, dry_run, snapshot) = (args.detach, args.replace, args.dry_run.dry_run, args.code.snapshot);
    let here = current_folder()?;
    let named = script::find(&args.code, &here)?;
    let folder = named.as_ref().map_or(here, |named| named.folder.clone());
    let mut request = requested(args.job, config, named.as_ref(), &folder)?;
    request.about = match (&named, &image.image) {
        (None, Some(image)) => about::of_image(image),
        _ => about::of_folder(&folder, &request.script.clone().unwrap_or_default()).await,
    };
    let Some(client) = running_master(config).await? else {
        if snapshot {
            let why = "a local master keeps no copy, because it ends with the job";
            return Err(
                Error::input(format!("--snapshot cannot be used with a local master: {why}")).hint(START_A_MASTER)
            );
        }
        check_for_processes(&image, &request, notes)?;
        let order = Order::of_job(in_place(request, named.as_ref(), &folder)?, None);
        if let Some(checker) = dry_run {
            return dry_run::show(&order, dry_run::without_master(checker)?.as_ref(), &mut out);
        }
        if detach {
            return Err(no_detach());
        }
        if config.master == MasterChoice::Local(LocalBecause::Default) {
            notes.say(LOCAL_BY_DEFAULT);
        }
        return at_own_master(order, config, out).await;
    };
    let place = ScriptPlace { folder, named, snapshot, syntax, image, on_unreachable, dry_run };
    let order = placed(request, place, &client, &config.image, notes).await?;
    if let Some(checker) = dry_run {
        let old = if replace { OldJob::IsDeletedFirst } else { OldJob::Stays };
        let answer = dry_run::check(&order, checker, &client, old).await?;
        return dry_run::show(&order, answer.as_ref(), &mut out);
    }
    send(client, order, (replace, detach), out).await
}

/// Submits a job to a running master. With `replace`, first deletes the job that has the same name. With `detach`,
/// returns when the master has accepted the job.
pub(super) async fn send(
    client: MasterClient,
    order: Order,
    (replace, detach): (bool, bool),
    out: Output,
) -> Result<Exit, Error> {
    let first = if replace { Stage::Checking } else { Stage::Submitting };
    let then = if detach { Then::Return } else { Then::Follow };
    at_running_master(Submission::new(client, order, first), then, out).await
}

/// The error if `--detach` is given and no master runs.
pub(super) fn no_detach() -> Error {
    let wrong = "cannot be used with a local master: the master and its job end with this command";
    Error::input(format!("--detach {wrong}")).hint(START_A_MASTER)
}

/// The request for the job, without its folder, code or image. `placed` adds these.
fn requested(
    flags: JobFlags,
    config: &ClientConfig,
    named: Option<&Named>,
    folder: &Path,
) -> Result<JobRequest, Error> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut base = JobRequest::new(name_after(name, uuid::Uuid::new_v4().into_bytes()), Strategy::AllReduce);
    base.script = named.map(|named| named.script.clone());
    if matches!(config.master, MasterChoice::Local(_)) {
        // Nothing is preempted on one machine, and a mistake in the script should fail the job at once.
        base.run_policy.max_restarts = 0;
    }
    request::job_request(flags, base, &variable_to_pass_on)
}

/// The job whose replicas run in a folder of this machine: that of the named script, or else `folder`.
fn in_place(request: JobRequest, named: Option<&Named>, folder: &Path) -> Result<JobSpec, Error> {
    let Some(named) = named else { return request::in_folder(request, folder) };
    let (folder, script) = named.in_place()?;
    request::in_folder(JobRequest { script: Some(script), ..request }, &folder)
}

/// Where the script of a job is, and the flags that depend on the master's back end.
struct ScriptPlace {
    folder: PathBuf,
    /// The script that the command line names.
    named: Option<Named>,
    /// Whether `--snapshot` is given.
    snapshot: bool,
    syntax: SyntaxArgs,
    image: ImageArgs,
    /// The value of `--on-unreachable`, if it is given.
    on_unreachable: Option<OnUnreachable>,
    /// The value of `--dry-run`. No image is made then.
    dry_run: Option<Checker>,
}

/// Adds to the job what its replicas run. If the command line names a script or a folder, the job brings its code, unless
/// the master can run it in the folder itself. Otherwise the master's back end decides: processes run the script in the
/// folder, and pods run an image.
async fn placed(
    request: JobRequest,
    place: ScriptPlace,
    client: &MasterClient,
    config: &ImageConfig,
    notes: &Notes,
) -> Result<Order, Error> {
    let master = persist(notes, || client.about()).await?;
    if let Some(uid) = master.uid.filter(|uid| client.url().is_loopback() && Some(*uid) != own_uid()) {
        let (url, script) = (client.url(), request.script.clone().unwrap_or_default());
        notes.say(&format!("the master at {url} runs as another user (uid {uid}): {script} will run as that user too"));
    }
    if master.backend == BackendKind::Joined {
        return at_machines(request, &place, client);
    }
    let ScriptPlace { folder, named, snapshot, syntax, image, on_unreachable: _, dry_run } = place;
    if let (BackendKind::Process, Some(flag)) = (master.backend, flag_for_kubernetes(&image, &request)) {
        let why = format!("the master at {} runs replicas as processes on its host", client.url());
        return Err(of_kubernetes(&flag, &format!("works only in Kubernetes: {why}")));
    }
    if master.backend == BackendKind::Process {
        say_what_cpus_are_for(&request, notes);
    }
    let (spec, code) = match (named, master.backend) {
        (Some(named), BackendKind::Process)
            if !snapshot && in_place::sees(client, named.folders_in_place(), notes).await? =>
        {
            say_other_python(&master, &request, notes);
            (in_place(request, Some(&named), &folder)?, None)
        }
        (Some(named), backend) => {
            let image = if backend == BackendKind::Kubernetes { Some(unmodified(image)?) } else { None };
            let code = bring::pack(named.folder, &named.script, syntax, notes).await?;
            (JobSpec::try_from(JobRequest { image, code: Some(code.id()), ..request })?, Some(code))
        }
        (None, BackendKind::Process | BackendKind::Joined) => (request::in_folder(request, &folder)?, None),
        (None, BackendKind::Kubernetes) => {
            let order = ImageOrder::new(image, config, &folder, Some(client.clone()))?.for_pods(&request.pod)?;
            // Check the job before the image is made, which may take long.
            JobSpec::try_from(JobRequest { image: Some(order.planned_name()), ..request.clone() })?;
            let image = match dry_run {
                None => image::prepare(&order, notes).await?,
                Some(_) => order.planned_name(),
            };
            (JobSpec::try_from(JobRequest { image: Some(image), ..request })?, None)
        }
    };
    Ok(Order::of_job(spec, code))
}

/// Says that the master's Python is not the Python of this shell. Scripts run with the master's PATH.
fn say_other_python(master: &MasterView, request: &JobRequest, notes: &Notes) {
    let here = first_python(&own_path(), Path::is_file);
    let (Some(there), Some(here)) = (&master.python, here) else { return };
    let folder = |python: &Path| python.parent().and_then(|folder| folder.canonicalize().ok());
    if folder(there) != folder(&here) && !request.env.keys().any(|name| name.as_str() == "PATH") {
        let (there, here) = (there.display(), here.display());
        let cure = "to use this one, add --env PATH (and other variables that its packages need)";
        notes.say(&format!("the scripts run with the master's Python, {there}; the Python here is {here}; {cure}"));
    }
}

/// The image of a job that brings its code.
fn unmodified(image: ImageArgs) -> Result<ImageRef, Error> {
    if let Some(flag) = image.given_for_wrapping() {
        let sentence = format!(
            "{flag} cannot be used with a script or --code: pods of such a job run the image unmodified, and nodes \
             pull it"
        );
        return Err(Error::input(sentence).hint(format!("leave out {flag}, or the script and --code")));
    }
    let no_image = || {
        Error::input("no image to run: a job that brings its code to Kubernetes needs --image")
            .hint("give an image with Python, for example --image tensorflow/tensorflow:2.21.0")
    };
    image.image.ok_or_else(no_image)
}

/// The error for a flag that works only in Kubernetes. `wrong` is the end of the sentence.
fn of_kubernetes(flag: &str, wrong: &str) -> Error {
    let hint = format!("leave out {flag}, or choose a master in Kubernetes with --master kube or --master URL");
    Error::input(format!("{flag} {wrong}")).hint(hint)
}

/// The job for a master with machines that join. Each machine has its own script, so a script on the command line is an
/// error. A flag for Kubernetes is an error too.
fn at_machines(request: JobRequest, place: &ScriptPlace, client: &MasterClient) -> Result<Order, Error> {
    let script = place.named.as_ref().map(|named| format!("the script {}", named.script));
    if let Some(what) = script.or(flag_for_kubernetes(&place.image, &request)) {
        let why = "this master runs jobs on machines that join it, and each machine has its own script";
        let join = machines::join_command(&request.name, client.url());
        return Err(Error::input(format!("{what} has no meaning here: {why}"))
            .hint(format!("leave it out; each machine has its own command: {join}")));
    }
    let request = JobRequest { about: About::default(), ..request };
    let spec = machines::on_machines(request, place.on_unreachable)?;
    let next_step = Some(machines::how_to_join(&spec.name, client.url()));
    Ok(Order { next_step, ..Order::of_job(spec, None) })
}

/// Refuses what a local master cannot do, and says what it ignores.
pub(super) fn check_for_processes(image: &ImageArgs, request: &JobRequest, notes: &Notes) -> Result<(), Error> {
    if let Some(flag) = flag_for_kubernetes(image, request) {
        let why = "a local master runs replicas as processes on this machine";
        return Err(of_kubernetes(&flag, &format!("cannot be used with a local master: {why}")));
    }
    say_what_cpus_are_for(request, notes);
    Ok(())
}

fn say_what_cpus_are_for(request: &JobRequest, notes: &Notes) {
    if request.groups.iter().any(|group| group.cpu.is_some()) {
        notes.say("without Kubernetes, cpu has one effect: it sets the first batch sizes");
    }
}

/// The first flag that only works in Kubernetes. If a job has a global batch or its group has bounds of a batch, `cpu`
/// of the group works everywhere: it then gives the relative speed of the group's workers.
fn flag_for_kubernetes(image: &ImageArgs, request: &JobRequest) -> Option<String> {
    let of_pods = || request.pod.asked_for().first().map(|name| format!("--{name}"));
    let of_group = |group: &Group| {
        let cpu = group.cpu.is_some() && request.batching.global_batch.is_none() && group.batch.is_none();
        let asked = [("cpu", cpu), ("memory", group.memory.is_some()), ("gpus", group.gpus.is_some())];
        asked.into_iter().find(|(_, is_asked)| *is_asked).map(|(name, _)| format!("--worker {name}="))
    };
    let of_groups = || request.groups.iter().find_map(of_group);
    image.given().map(str::to_owned).or_else(of_pods).or_else(of_groups)
}
