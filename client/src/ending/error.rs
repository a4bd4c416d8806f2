//! Every error that ends a command, with its hint. Exit codes are in `exit.rs`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use protocol::error::ErrorCode;
use protocol::ids::JobName;
use protocol::view::JobState;

use crate::address::config::ConfigError;
use crate::address::master_url::MasterUrl;
use crate::args::usage::UsageError;
use crate::cluster::ClusterError;
use crate::cluster::shell_env::EnvError;
use crate::code::pack::PackError;
use crate::image::ImageError;
use crate::master::announcement::Announced;
use crate::master::client::MasterError;
use crate::master::local::LocalMasterError;
use crate::output::command_line::command;
use crate::output::{OutputError, spelled};
use crate::request::RequestError;
use crate::request::script::ScriptError;
use crate::request::spawn::SpawnError;
use crate::request::tfjob::TfJobError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The command line does not parse.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The master's address or the token is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The arguments do not describe a valid job.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The verb needs a master. No master is given, and no local master runs.
    #[error("no master is given, but \"{verb}\" needs one")]
    NeedsMaster { verb: &'static str },
    /// The verb needs a master. `local` is given as the master's address, but no local master runs.
    #[error("you have no running local master: a local master ends with its job")]
    NoLocalMaster,
    /// The verb needs a master. No master is given, and several local masters run.
    #[error("{} local masters run: {}", .0.len(), listed(.0))]
    SeveralLocalMasters(Vec<Announced>),
    /// Several local masters run, and none of them runs this job.
    #[error("no local master runs job {name}: {} local masters run: {}", masters.len(), listed(masters))]
    NotAtLocalMasters {
        /// The job.
        name: JobName,
        /// All local masters.
        masters: Vec<Announced>,
    },
    /// `--detach` is given for a local master.
    #[error("--detach cannot be used with a local master: the master and its job end with this command")]
    LocalDetached,
    /// `--dry-run=server` is given for a local master, which does not run yet.
    #[error("--dry-run=server needs a running master, and none is given")]
    NoServer,
    /// The master does not keep the code that the job needs.
    #[error("the master does not keep the code of job {0}, so no job was deleted or submitted")]
    CodeNotKept(JobName),
    /// A flag for Kubernetes is given for a local master.
    #[error("{flag} cannot be used with a local master: a local master runs replicas as processes on this machine")]
    NotLocal { flag: String },
    /// A flag for Kubernetes is given for a master that runs processes.
    #[error("{flag} works only in Kubernetes: the master at {url} runs replicas as processes on its host")]
    NotAtProcesses {
        flag: String,
        /// The master.
        url: MasterUrl,
    },
    /// An argument has no meaning, because the machines of the master have their own scripts.
    #[error(
        "{what} has no meaning here: this master runs jobs on machines that join it, and each machine has its own script"
    )]
    AtMachines {
        /// The flag or the argument.
        what: String,
        /// The command that lets a machine join.
        join: String,
    },
    /// There is no script to run.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The job's code cannot be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A folder cannot be watched for changes.
    #[error("watch {} for changes", folder.display())]
    Watch { folder: PathBuf, source: io::Error },
    /// The job of `--watch` has no folder to watch, for example because the job runs on machines that join.
    #[error("--watch cannot be used with job {0}: the job names no folder that could be watched")]
    NoFolderToWatch(JobName),
    /// The files with TFJobs cannot be used.
    #[error(transparent)]
    TfJob(#[from] TfJobError),
    /// The command line of tf-spawner cannot be used.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// Pods need an image, and the command line names none.
    #[error("no image to run: a job that brings its code to Kubernetes needs --image")]
    CodeNeedsImage,
    /// The job brings its code, so the client adds no agent to the image. The flag would have no effect.
    #[error(
        "{flag} cannot be used with a script or --code: pods of such a job run the image unmodified, and nodes pull it"
    )]
    NotWithCode { flag: &'static str },
    /// The image for the pods could not be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// `client env` found no cluster.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A cluster cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A request to the master failed.
    #[error(transparent)]
    Master(#[from] MasterError),
    /// The local master failed.
    #[error(transparent)]
    Local(#[from] LocalMasterError),
    /// The runtime could not start, or signals cannot be caught.
    #[error("start the client's runtime")]
    Runtime(#[source] io::Error),
    /// Data could not be written to stdout.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The job did not end within `wait --timeout`.
    #[error("job {name} is still {state} after {}", spelled(*after))]
    WaitTimeout {
        /// The job.
        name: JobName,
        state: JobState,
        /// The timeout.
        after: Duration,
    },
    /// A deleted job still exists.
    #[error("job {name} still exists after {}; the master continues to delete it", spelled(*after))]
    DeleteTimeout {
        /// The job.
        name: JobName,
        /// The timeout.
        after: Duration,
    },
    /// An earlier command submitted the same job, and the job has ended.
    #[error("job {name} has already ended ({result}); nothing was submitted")]
    AlreadyEnded {
        /// The job.
        name: JobName,
        /// The state that shows its result.
        result: JobState,
    },
    /// Someone deleted the job and submitted another job with the same name.
    #[error("job {0} was deleted, and another job has its name now")]
    Replaced(JobName),
    /// Someone deleted the job while this command waited for it.
    #[error("job {0} was deleted before it ended")]
    Deleted(JobName),
}

impl Error {
    /// The next step for the user, if there is one.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Usage(error) => error.hint.clone(),
            Self::Config(error) => error.hint(),
            Self::Request(error) => error.hint(),
            Self::NeedsMaster { .. } => {
                Some("give --master URL or set MUSTER_MASTER; you have no running local master".to_owned())
            }
            Self::SeveralLocalMasters(masters) => {
                masters.first().map(|one| format!("choose one, for example with --master {}", one.url))
            }
            Self::NotAtLocalMasters { .. } => Some(format!("to see all local jobs: {}", command("list"))),
            Self::NoLocalMaster | Self::LocalDetached => Some(
                "run `master --backend process` in another terminal and give --master http://127.0.0.1:7897".to_owned(),
            ),
            Self::NoServer => {
                Some("give --master URL, or let this machine check the job with --dry-run=client".to_owned())
            }
            Self::NotLocal { flag } | Self::NotAtProcesses { flag, .. } => {
                Some(format!("leave out {flag}, or choose a master in Kubernetes with --master kube or --master URL"))
            }
            Self::AtMachines { join, .. } => Some(format!("leave it out; each machine has its own command: {join}")),
            Self::Script(error) => error.hint(),
            Self::Pack(error) => error.hint(),
            Self::Watch { .. } => Some(
                "list large folders in .musterignore, or raise the limits of inotify: sysctl fs.inotify".to_owned(),
            ),
            Self::NoFolderToWatch(name) => {
                Some(format!("to start its scripts again: {}", command(&format!("push {name}"))))
            }
            Self::TfJob(error) => error.hint(),
            Self::Spawn(error) => error.hint(),
            Self::CodeNeedsImage => {
                Some("give an image with Python, for example --image tensorflow/tensorflow:2.21.0".to_owned())
            }
            Self::NotWithCode { flag } => Some(format!("leave out {flag}, or the script and --code")),
            Self::AlreadyEnded { name, .. } => Some(format!(
                "add --replace to run it again, or choose another --task; to see its output: {}",
                command(&format!("logs {name}"))
            )),
            // The client gets the agent for the image from the master. If the master cannot be reached, a hint about
            // the master is more useful than a hint about the agent.
            Self::Image(ImageError::Master(error)) if !error.is_not_found() => master_hint(error),
            Self::Image(error) => error.hint(),
            Self::Env(error) => error.hint(),
            Self::Cluster(error) => error.hint(),
            Self::Master(error) => master_hint(error),
            Self::Local(error) => error.hint(),
            Self::Runtime(_)
            | Self::CodeNotKept(_)
            | Self::Output(_)
            | Self::WaitTimeout { .. }
            | Self::DeleteTimeout { .. }
            | Self::Replaced(_)
            | Self::Deleted(_) => None,
        }
    }

    /// Whether the error means that the reader has closed stdout, as `head` does. Such an error is not reported.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Self::Output(OutputError::Closed))
    }
}

fn listed(masters: &[Announced]) -> String {
    let named: Vec<String> = masters.iter().map(|master| format!("{} (job {})", master.url, master.job)).collect();
    named.join(", ")
}

fn master_hint(error: &MasterError) -> Option<String> {
    match error {
        MasterError::NotConnected { .. } | MasterError::Unreachable { .. } | MasterError::Silent { .. } => {
            Some("is the master running, and is --master (or MUSTER_MASTER) its address?".to_owned())
        }
        MasterError::NotAMaster { .. } => Some("check --master (or MUSTER_MASTER): host, port and path".to_owned()),
        MasterError::Refused(problem) if problem.code == ErrorCode::UnknownJob => {
            Some(format!("to see the jobs that this master knows: {}", command("list")))
        }
        MasterError::Refused(problem) => code_hint(problem.code).map(str::to_owned),
        MasterError::NoWay(error) => error.hint(),
        MasterError::Setup(_) => None,
    }
}

/// A hint for the error codes whose `detail` contains no hint.
fn code_hint(code: ErrorCode) -> Option<&'static str> {
    let hints = [
        (ErrorCode::Unauthorized, "give the master's token in MUSTER_TOKEN or with --token-file FILE"),
        (ErrorCode::Forbidden, "give the master's token in MUSTER_TOKEN or with --token-file FILE"),
        (ErrorCode::JobExists, "add --replace to delete that job first, or choose another --task"),
        (ErrorCode::Unavailable, "try again later"),
        (ErrorCode::UnknownRoute, "the master and this client have different versions: use the same version of both"),
    ];
    hints.into_iter().find(|(hinted, _)| *hinted == code).map(|(_, hint)| hint)
}
