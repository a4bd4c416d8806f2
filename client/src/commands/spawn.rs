//! `spawn`: starts, or deletes, a training as tf-spawner does.

use std::fs;
use std::path::Path;

use master_client::{KubePlace, MasterClient, MasterError, SubmitOutcome};
use protocol::error::ErrorCode;
use protocol::job::{JobRequest, JobSpec};
use protocol::master::BackendKind;
use protocol::origin::Origin;

use super::ask::ask;
use super::delete;
use super::leaving::Stage;
use super::order::Order;
use super::own_master::at_own_master;
use super::submission::{Submission, Then, at_running_master};
use super::syntax;
use crate::address::config::{ClientConfig, LocalBecause, MasterChoice};
use crate::args::SpawnArgs;
use crate::code::pack::Packed;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::master::patience::persist;
use crate::masters::which_master::{Masters, running_master, with_namespace};
use crate::output::{Data, Format, Notes, Output, command_line};
use crate::request::spawn::{self, Inputs, Tag};
use crate::request::unreadable;

/// The default of `--pod-file`.
const POD_FILE: &str = "pod.yaml";

pub(super) async fn run(args: SpawnArgs, config: &ClientConfig, data: Data, notes: &Notes) -> Result<Exit, Error> {
    let tag = Tag::of(&args, uuid::Uuid::new_v4())?;
    let given = &config.master;
    let config = &in_cluster(config, &args)?;
    command_line::remember_choice(given, &config.master);
    if args.delete {
        return delete_training(&args, &tag, config, notes).await;
    }
    let inputs = read(&args)?;
    for (name, _) in inputs.env.iter().filter(|(name, _)| name.as_str().contains("SECRET")) {
        notes.say(&format!(
            "everybody who may see the job can read {name}: put this variable into a Secret, and name the Secret in envFrom of the pod file"
        ));
    }
    for (name, _) in inputs.env.iter().filter(|(name, _)| name.runs_other_code()) {
        notes.say(&format!("{name} can make programs run other code before your script"));
    }
    let out = Output { format: Format::Text, data, notes: notes.clone() };
    let Some(client) = running_master(config).await? else {
        let order = order(&args, tag, inputs, BackendKind::Process).await?;
        return at_own_master(order, config, out).await;
    };
    let backend = persist(notes, || client.about()).await?.backend;
    let order = order(&args, tag.clone(), inputs, backend).await?;
    if args.follow {
        return at_running_master(Submission::new(client, order, Stage::Submitting), Then::Follow, out).await;
    }
    start(&client, &order, &tag, out).await
}

/// Returns the configuration. If the user names no master, chooses the master in the cluster.
fn in_cluster(config: &ClientConfig, args: &SpawnArgs) -> Result<ClientConfig, Error> {
    let is_elsewhere = matches!(config.master, MasterChoice::At(_) | MasterChoice::Local(LocalBecause::Asked));
    if let (true, Some(namespace)) = (is_elsewhere, &args.namespace) {
        let sentence = format!(
            "-n {namespace} cannot be used with the address of a master, or with a local master: they run the job \
             elsewhere"
        );
        return Err(Error::input(sentence).hint("leave out -n, or give --master kube"));
    }
    let config = match config.master {
        MasterChoice::Local(LocalBecause::Default) => {
            ClientConfig { master: MasterChoice::Kube(KubePlace::default()), ..config.clone() }
        }
        MasterChoice::Local(LocalBecause::Asked) | MasterChoice::At(_) | MasterChoice::Kube(_) => config.clone(),
    };
    Ok(with_namespace(&config, args.namespace.as_ref()))
}

fn read(args: &SpawnArgs) -> Result<Inputs, Error> {
    let text = |path: &Path| fs::read_to_string(path).map_err(unreadable(path));
    let no_script = || {
        let example = command_line::command("spawn -w 3 train.py");
        let hint = format!("put the script last, for example {example}; client spawn --help lists the options");
        Error::input("no script is given").hint(hint)
    };
    let script = Path::new(args.script.as_deref().ok_or_else(no_script)?);
    let default = Path::new(POD_FILE);
    let pod_file = args.pod_file.as_deref().or_else(|| default.is_file().then_some(default));
    let content = fs::read(script).map_err(unreadable(script))?;
    let commands = args.command.as_deref().map(text).transpose()?;
    let pod = pod_file.map(|path| spawn::pod_file(&text(path)?, path)).transpose()?;
    let env = args.env_file.as_deref().map(|path| spawn::environment(&text(path)?, path)).transpose()?;
    let script = script.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Inputs { script, content, commands, pod, env: env.unwrap_or_default() })
}

/// The training, as a job. Checks the script.
async fn order(args: &SpawnArgs, tag: Tag, inputs: Inputs, backend: BackendKind) -> Result<Order, Error> {
    let script = inputs.script.clone();
    let (request, files) = spawn::job(args, tag, inputs, backend == BackendKind::Process)?;
    let code = Packed::in_memory(files)?;
    syntax::check_submit(&code, &script, args.syntax).await?;
    let spec = JobSpec::try_from(JobRequest { code: Some(code.id()), ..request })?;
    Ok(Order::of_job(spec, Some(code)))
}

/// Submits the training, and returns when the master has accepted it.
async fn start(client: &MasterClient, order: &Order, tag: &Tag, out: Output) -> Result<Exit, Error> {
    let Output { mut data, notes, .. } = out;
    let view = match order.submit(client, &notes).await {
        Ok(SubmitOutcome::New(view)) => view,
        Ok(SubmitOutcome::Before(_) | SubmitOutcome::Changed { .. }) => return Err(taken(client, tag).await?),
        Err(MasterError::Refused(problem)) if problem.code == ErrorCode::JobExists => {
            return Err(taken(client, tag).await?);
        }
        Err(error) => return Err(error.into()),
    };
    data.text(&format!("generated with label training_attempt={}", tag.text))?;
    for replica in view.replicas.iter() {
        data.text(&replica.pod)?;
    }
    Ok(Exit::Done)
}

/// The error for a tag whose job name is taken. Two tags, such as `my-tag` and `My_Tag`, can give the same job name.
async fn taken(client: &MasterClient, tag: &Tag) -> Result<Error, MasterError> {
    let is_training = is_training(&client.view(&tag.job).await?.spec, tag);
    let Tag { text: tag, job: name } = tag;
    let (sentence, or) = if is_training {
        let delete = command_line::command(&format!("spawn -d {tag}"));
        (format!("a training with tag {tag} exists, as job {name}"), format!("or delete the training: {delete}"))
    } else {
        let show = command_line::command(&format!("status {name}"));
        let sentence = format!("tag {tag} makes the job's name {name}, and another job has this name");
        (sentence, format!("to see the other job: {show}"))
    };
    Ok(Error::input(sentence).hint(format!("use another tag: -t TAG or -r; {or}")))
}

fn is_training(job: &JobSpec, tag: &Tag) -> bool {
    job.origin == Some(Origin::Spawner { attempt: tag.text.clone() })
}

async fn delete_training(args: &SpawnArgs, tag: &Tag, config: &ClientConfig, notes: &Notes) -> Result<Exit, Error> {
    if !args.yes && !is_wanted(tag, notes).await? {
        notes.say("nothing was deleted");
        return Ok(Exit::Done);
    }
    let client = Masters::find("spawn -d", config, notes).await?.of(&tag.job)?;
    let job = client.view(&tag.job).await?;
    if !is_training(&job.spec, tag) {
        let Tag { text: tag, job: name } = tag;
        let delete = command_line::command(&format!("delete {name}"));
        return Err(Error::input(format!("job {name} is not the training with tag {tag}: nothing was deleted"))
            .hint(format!("to delete this job: {delete}")));
    }
    delete::delete(&client, &tag.job, notes).await?;
    Ok(Exit::Done)
}

/// Asks the user at the terminal. Only `y` means yes.
async fn is_wanted(tag: &Tag, notes: &Notes) -> Result<bool, Error> {
    let question = &format!("delete the training with tag {}, job {}? y/[n]", tag.text, tag.job);
    let no_consent = || Error::input("-d must ask before it deletes, but there is no terminal: give -y");
    let answer = ask(question, notes).await.ok_or_else(no_consent)?;
    Ok(answer == "y")
}
