//! `client spawn`: turns a command line of tf-spawner, with its pod file and its environment file, into a job.

mod files;

use protocol::code::{CodePath, ScriptPath};
use protocol::env::EnvName;
use protocol::group::{Group, Template};
use protocol::ids::{JobName, Role, SHORT_NAME_MAX};
use protocol::image::ImageRef;
use protocol::job::{JobRequest, Strategy};
use protocol::origin::Origin;
use protocol::pod::LabelValue;
use protocol::run_policy::RunPolicy;

pub(crate) use self::files::{PodFile, environment, pod_file};
use crate::args::SpawnArgs;
use crate::ending::error::Error;
use crate::request::script::bad_name;

/// The tag if the command line names none.
const DEFAULT_TAG: &str = "tf-spawner";
/// The image if neither the command line nor the pod file names one.
const DEFAULT_IMAGE: &str = "tensorflow/tensorflow";
/// The script's name in the folder /script.
pub(crate) const SCRIPT: &str = "training-script.py";
/// The script's path, as commands and pod files of tf-spawner name it.
const SCRIPT_IN_POD: &str = "/script/training-script.py";
/// The name of the file with the commands of -c.
const COMMANDS: &str = ".tf-spawner/command.sh";

/// The tag of a training. It becomes a label of the pods and gives the job its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The tag as the user typed it.
    pub(crate) text: String,
    /// The tag in lower case and of limited length, with `-` for every character that is not a letter or digit.
    pub(crate) job: JobName,
}

impl Tag {
    /// The tag that a command line names. A random tag is the first eight characters of `random`.
    pub(crate) fn of(args: &SpawnArgs, random: uuid::Uuid) -> Result<Self, Error> {
        let positional = if args.delete { args.script.as_ref() } else { None };
        let text = match (positional, &args.tag) {
            (Some(positional), Some(tag)) => {
                let sentence = format!("-d {positional} and -t {tag} both name a tag: give only one of them");
                return Err(Error::input(sentence));
            }
            _ if args.randomize_tag => random.to_string()[..8].to_owned(),
            (Some(tag), None) | (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        };
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
        let name: String = text.chars().map(plain).take(SHORT_NAME_MAX).collect();
        match (text.parse::<LabelValue>(), name.trim_matches('-').parse()) {
            (Ok(_), Ok(job)) => Ok(Self { text, job }),
            (_, _) => Err(Error::input(format!(
                "tag {text:?} cannot be a label: use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
            ))),
        }
    }
}

/// The contents of the files that a command line names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Inputs {
    /// The name of the script.
    pub(crate) script: String,
    /// The content of the script.
    pub(crate) content: Vec<u8>,
    /// The commands of -c.
    pub(crate) commands: Option<String>,
    /// The pod file.
    pub(crate) pod: Option<PodFile>,
    /// The variables of the environment file.
    pub(crate) env: Vec<(EnvName, String)>,
}

/// A job, and the files that it brings.
pub(crate) type Spawned = (JobRequest, Vec<(CodePath, Vec<u8>)>);

/// Makes the job of a command line. If `is_local`, the workers are processes on one machine, without images and without
/// the folder /script.
pub(crate) fn job(args: &SpawnArgs, tag: Tag, inputs: Inputs, is_local: bool) -> Result<Spawned, Error> {
    let Inputs { script, content, commands, pod, env } = inputs;
    let beside = |text: String| if is_local { text.replace(SCRIPT_IN_POD, SCRIPT) } else { text };
    let mut files: Vec<(CodePath, Vec<u8>)> =
        vec![(script.parse().map_err(|error| bad_name(&error))?, content.clone())];
    if script != SCRIPT {
        files.push((SCRIPT.parse().map_err(|error| bad_name(&error))?, content));
    }
    let PodFile { container, image, command, template } = pod.unwrap_or_else(PodFile::usual);
    let command = match commands {
        Some(commands) => {
            files.push((COMMANDS.parse().map_err(|error| bad_name(&error))?, beside(commands).into_bytes()));
            ["bash", "-e", COMMANDS].map(str::to_owned).into()
        }
        None => command.into_iter().map(beside).collect(),
    };
    let image = args.image.clone().or_else(|| image.is_none().then(default_image)).filter(|_| !is_local);
    let template = Template { container, tf_port: args.port, pod: template };
    let group = Group { command, template: (!is_local).then_some(template), ..Group::new(Role::Worker, args.workers) };
    let request = JobRequest {
        worker_num: Some(args.workers),
        image,
        script: Some(SCRIPT.parse::<ScriptPath>().map_err(|error| bad_name(&error))?),
        allow_env: env.iter().map(|(name, _)| name.clone()).filter(EnvName::runs_other_code).collect(),
        env: env.into_iter().collect(),
        groups: vec![group],
        origin: Some(Origin::Spawner { attempt: tag.text }),
        run_policy: RunPolicy { max_restarts: args.max_restarts, ..RunPolicy::default() },
        ..JobRequest::new(tag.job, Strategy::AllReduce)
    };
    Ok((request, files))
}

fn default_image() -> ImageRef {
    DEFAULT_IMAGE.parse().expect("a valid image name")
}

#[cfg(test)]
#[path = "../spawn_tests.rs"]
mod tests;
