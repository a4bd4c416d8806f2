//! Submits a script as a job, to a master that already runs or to a new local master. The script is in a folder or in
//! an image.

use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use protocol::about::About;
use protocol::group::Group;
use protocol::ids::JobName;
use protocol::image::ImageRef;
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::master::BackendKind;
use protocol::run_policy::OnUnreachable;
use protocol::view::JobView;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::bring;
use super::current_folder;
use super::delete::delete_if_there;
use super::dry_run;
use super::in_place;
use super::leaving::{Stage, farewell, left_by_its_reader, to_follow, unless_interrupted};
use super::machines;
use super::order::Order;
use super::past;
use super::which_master::{START_A_MASTER, running_master};
use crate::address::config::{Config, ImageConfig, LocalBecause, MasterChoice, variable_to_pass_on};
use crate::args::{Checker, Format, ImageArgs, JobFlags, SubmitArgs, SyntaxArgs};
use crate::code::pack::Packed;
use crate::ending::error::{Cause, Error, MasterError};
use crate::ending::exit::Exit;
use crate::follow::log_stream::Wanted;
use crate::follow::{Following, follow, follow_unseen, or_deleted};
use crate::image::{self, ImageOrder};
use crate::interrupt::Interrupts;
use crate::master::announcement::{Announced, Announcement, own_uid};
use crate::master::client::{MasterClient, OldJob, Submitted};
use crate::master::local::LocalMaster;
use crate::master::patience::persist;
use crate::output::narrate;
use crate::output::{Data, LogLines, Notes, Output};
use crate::request::script::{self, Named};
use crate::request::{self, about, name_after};

/// Printed when neither a flag nor a variable names a master.
pub(super) const LOCAL_BY_DEFAULT: &str =
    "no --master and no MUSTER_MASTER: running the job on this machine, with a local master";
/// Maximum time for a cancelled job to end. After this time, its local master is stopped.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn run(args: SubmitArgs, config: &Config, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let mut out = Output { format: args.format.output, data, notes: notes.clone() };
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
        let order = Order::of_job(request::in_folder(request, &folder)?, None);
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
    let place = Place { folder, named, snapshot, syntax, image, on_unreachable, dry_run };
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
fn requested(flags: JobFlags, config: &Config, named: Option<&Named>, folder: &Path) -> Result<JobRequest, Error> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut base = JobRequest::new(name_after(name, uuid::Uuid::new_v4().into_bytes()), Strategy::AllReduce);
    base.script = named.map(|named| named.script.clone());
    if matches!(config.master, MasterChoice::Local(_)) {
        // Nothing is preempted on one machine, and a mistake in the script should fail the job at once.
        base.run_policy.max_restarts = 0;
    }
    request::job_request(flags, base, &variable_to_pass_on)
}

/// Where the script of a job is, and the flags that depend on the master's back end.
struct Place {
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
    place: Place,
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
    let Place { folder, named, snapshot, syntax, image, on_unreachable: _, dry_run } = place;
    if let (BackendKind::Process, Some(flag)) = (master.backend, flag_for_kubernetes(&image, &request)) {
        let why = format!("the master at {} runs replicas as processes on its host", client.url());
        return Err(of_kubernetes(&flag, &format!("works only in Kubernetes: {why}")));
    }
    if master.backend == BackendKind::Process {
        say_what_cpus_are_for(&request, notes);
    }
    let (spec, code) = match (named, master.backend) {
        (Some(named), BackendKind::Process) if !snapshot && in_place::sees(client, &named.folder, notes).await? => {
            (request::in_folder(request, &named.folder)?, None)
        }
        (Some(named), backend) => {
            let image = if backend == BackendKind::Kubernetes { Some(unmodified(image)?) } else { None };
            let code = bring::pack(named, syntax).await?;
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
fn at_machines(request: JobRequest, place: &Place, client: &MasterClient) -> Result<Order, Error> {
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
            if left_by_its_reader(&error, &client, &name).await.is_some() {
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
        Submitted::New(view) => {
            notes.say(&narrate::accepted(&view));
            narrate::place(&view).iter().for_each(|place| notes.say(&format!("job {} runs in {place}", view.name)));
            view
        }
        // The script may have changed since the earlier submit, so the earlier result may be outdated.
        Submitted::Before(JobView { result: Some(result), .. }) => return Err(order.already_ended(result.state())),
        Submitted::Before(view) => {
            notes.say(&narrate::submitted_before(&view));
            view
        }
        Submitted::Changed { job, change } => {
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

async fn submit_and_follow(submission: Submission, out: Output) -> Result<Exit, Error> {
    let Output { format, mut data, notes } = out;
    let (client, first, code) = submit(submission, &notes).await?;
    data.log_lines_as(LogLines::prefixed(&first.spec));
    let logs = if format == Format::Json { None } else { Some(Wanted::default()) };
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

/// Runs the job at a local master. Always shuts the master down, with everything it has started.
pub(super) async fn at_own_master(order: Order, config: &Config, out: Output) -> Result<Exit, Error> {
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
    config: &Config,
    out: Output,
    interrupts: &mut Interrupts,
) -> Result<Exit, Error> {
    let (name, notes) = (order.name.clone(), out.notes.clone());
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
        Some(Err(error)) => match left_by_its_reader(&error, &client, &name).await {
            Some(job) => {
                let work = tokio::spawn(follow_unseen(client.clone(), job, notes.clone()));
                (": stdout is closed; interrupt to kill the job", Ok(work))
            }
            None => ("", Err(Err(error))),
        },
        Some(outcome) => ("", Err(outcome)),
        None => ("; interrupt again to kill the job", Ok(work)),
    };
    let outcome = match work {
        Ok(work) => {
            notes.end_progress();
            notes.say(&format!("stopping job {name}{why}"));
            let job = Running { client: client.clone(), name: name.clone(), work };
            stop(master, job, interrupts, &notes).await
        }
        Err(outcome) => outcome,
    };
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
}

/// Cancels the job and follows the job to its end. Returns early after a second interrupt, the timeout, a failed cancel
/// or the master's death. A last line then says what happens to the job, or what failed.
async fn stop(
    master: &mut LocalMaster,
    job: Running,
    interrupts: &mut Interrupts,
    notes: &Notes,
) -> Result<Exit, Error> {
    let Running { client, name, mut work } = job;
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
        () = tokio::time::sleep(CANCEL_TIMEOUT) => Err(with_its_master()),
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
