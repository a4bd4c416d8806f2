//! Every error that ends a command, with its hint. Exit codes are in `exit.rs`.

use std::time::Duration;

use protocol::agent::SCRIPT;
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use protocol::view::JobState;

use crate::config::ConfigError;
use crate::image::ImageError;
use crate::local_master::LocalMasterError;
use crate::master_client::MasterError;
use crate::master_url::MasterUrl;
use crate::output::{OutputError, spelled};
use crate::request::RequestError;
use crate::shell_env::EnvError;
use crate::usage::UsageError;

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
    /// A verb that needs a master, and none is given.
    #[error("no master is given, so there is none to ask to {verb}")]
    NeedsMaster {
        /// The verb.
        verb: &'static str,
    },
    /// The same, with `--master local`.
    #[error("a local master has no jobs to ask about once its job is over")]
    LocalHasNoJobs,
    /// `--detach` beside `local`.
    #[error("--detach does not go with a local master: it ends with this command, and the job with it")]
    LocalDetached,
    /// A flag for Kubernetes with a local master.
    #[error("{flag} does not go with a local master: it runs the folder's {SCRIPT} as processes of this machine")]
    NotLocal {
        /// The flag.
        flag: String,
    },
    /// A flag for Kubernetes with a master that runs processes.
    #[error("{flag} has no meaning at {url}: its pods are processes of the master's host")]
    NotAtProcesses {
        /// The flag.
        flag: String,
        /// The master.
        url: MasterUrl,
    },
    /// There is no image for pods to run.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// `client env` found no cluster.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A request to the master failed.
    #[error(transparent)]
    Master(#[from] MasterError),
    /// The local master failed.
    #[error(transparent)]
    Local(#[from] LocalMasterError),
    /// The runtime could not start: no threads or sockets.
    #[error("start the client's runtime")]
    Runtime(#[source] std::io::Error),
    /// Data could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// `wait --timeout` is over.
    #[error("job {name} is still {state} after {}", spelled(*after))]
    WaitTimeout {
        /// The job.
        name: JobName,
        /// Its state.
        state: JobState,
        /// The timeout.
        after: Duration,
    },
    /// A deleted job is still shown.
    #[error("job {name} is not gone after {}; the master goes on removing it", spelled(*after))]
    DeleteTimeout {
        /// The job.
        name: JobName,
        /// The timeout.
        after: Duration,
    },
    /// An earlier command submitted the same job, and it has ended: its result is not this command's.
    #[error("job {name} has already ended ({result}); nothing was submitted")]
    AlreadyEnded {
        /// The job.
        name: JobName,
        /// The state that shows its result.
        result: JobState,
    },
    /// Someone deleted the job and submitted another under its name.
    #[error("job {0} was deleted, and another has its name now")]
    Replaced(JobName),
    /// Someone deleted the job that this command has submitted.
    #[error("job {0} was deleted before it had finished")]
    Deleted(JobName),
}

impl Error {
    /// The next step for the user, if there is one.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Usage(error) => error.hint.clone(),
            Self::Config(error) => error.hint(),
            Self::Request(error) => error.hint(),
            Self::NeedsMaster { .. } => Some(
                "give --master URL or set MUSTER_MASTER; a local master exists only while the job that started it runs"
                    .to_owned(),
            ),
            Self::LocalHasNoJobs => Some(
                "start a master that stays, `master --backend process`, and give --master http://127.0.0.1:7897"
                    .to_owned(),
            ),
            Self::LocalDetached => Some(
                "start a master of its own, `master --backend process`, and give --master http://127.0.0.1:7897"
                    .to_owned(),
            ),
            Self::NotLocal { .. } | Self::NotAtProcesses { .. } => {
                Some("leave it out, or give --master URL, the address of a master in Kubernetes".to_owned())
            }
            Self::AlreadyEnded { name, .. } => Some(format!(
                "add --replace to run it again, or choose another --task; client logs {name} shows its output"
            )),
            // The hint about an unreachable master is more useful than the one about a missing agent.
            Self::Image(ImageError::Master(error)) if !error.is_not_found() => master_hint(error),
            Self::Image(error) => error.hint(),
            Self::Env(error) => error.hint(),
            Self::Master(error) => master_hint(error),
            Self::Local(error) => error.hint(),
            Self::Runtime(_)
            | Self::Output(_)
            | Self::WaitTimeout { .. }
            | Self::DeleteTimeout { .. }
            | Self::Replaced(_)
            | Self::Deleted(_) => None,
        }
    }

    /// Whether the reader of stdout has closed it, as `head` does. That is not reported.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Self::Output(OutputError::Closed))
    }
}

fn master_hint(error: &MasterError) -> Option<String> {
    match error {
        MasterError::Unreachable { .. } | MasterError::Silent { .. } => {
            Some("is the master running, and is --master (or MUSTER_MASTER) its address?".to_owned())
        }
        MasterError::NotAMaster { .. } => Some("check --master (or MUSTER_MASTER): host, port and path".to_owned()),
        MasterError::Refused(problem) => code_hint(problem.code).map(str::to_owned),
        MasterError::Setup(_) => None,
    }
}

/// A hint for the codes whose detail has none.
fn code_hint(code: ErrorCode) -> Option<&'static str> {
    let hints = [
        (ErrorCode::Unauthorized, "give the master's token by MUSTER_TOKEN or --token-file FILE"),
        (ErrorCode::Forbidden, "give the master's token by MUSTER_TOKEN or --token-file FILE"),
        (ErrorCode::JobExists, "add --replace to delete that job first, or choose another --task"),
        (ErrorCode::UnknownJob, "client list shows the jobs that this master knows"),
        (ErrorCode::Unavailable, "try again later"),
    ];
    hints.into_iter().find(|(hinted, _)| *hinted == code).map(|(_, hint)| hint)
}
