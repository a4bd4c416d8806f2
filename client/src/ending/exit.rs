//! The exit code of each outcome. The help in `args.rs` lists the codes.

use std::process::ExitCode;

use protocol::error::ErrorCode;
use protocol::view::JobState;

use crate::cluster::ClusterError;
use crate::ending::error::Error;
use crate::image::ImageError;
use crate::master::client::MasterError;

/// How this process ends.
///
/// Ordered from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// The command succeeded. If the command followed a job, the job succeeded too.
    Done,
    /// The job failed, was cancelled, or is not known to have succeeded.
    NotSucceeded,
    /// The input is wrong: the command line, a variable, a file, or the job that the command line names.
    BadInput,
    /// The master or the cluster failed, could not be reached, or refused the request.
    MasterFailed,
    /// The image could not be found, built, pushed or loaded.
    ImageFailed,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::NotSucceeded => 1,
            Exit::BadInput => 2,
            Exit::MasterFailed => 3,
            Exit::ImageFailed => 4,
        })
    }
}

impl From<JobState> for Exit {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Succeeded => Self::Done,
            JobState::Failed
            | JobState::Cancelled
            | JobState::Pending
            | JobState::Starting
            | JobState::Running
            | JobState::Stopping
            | JobState::Restarting
            | JobState::Halted
            | JobState::Suspended => Self::NotSucceeded,
        }
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        match error {
            Error::Usage(_) | Error::Config(_) | Error::Request(_) | Error::NeedsMaster { .. } => Self::BadInput,
            Error::NoLocalMaster | Error::SeveralLocalMasters(_) | Error::NotAtLocalMasters { .. } => Self::BadInput,
            Error::LocalDetached | Error::NoServer | Error::AlreadyEnded { .. } => Self::BadInput,
            Error::NotLocal { .. } | Error::NotAtProcesses { .. } | Error::AtMachines { .. } => Self::BadInput,
            Error::Script(_)
            | Error::Pack(_)
            | Error::TfJob(_)
            | Error::Spawn(_)
            | Error::Watch { .. }
            | Error::CodeNeedsImage
            | Error::NoFolderToWatch(_)
            | Error::NotWithCode { .. } => Self::BadInput,
            Error::Image(error) => Self::from(error),
            Error::Master(error) => Self::from(error),
            Error::Cluster(error) => Self::from(error),
            Error::Local(_) | Error::Runtime(_) | Error::Env(_) => Self::MasterFailed,
            Error::CodeNotKept(_) => Self::MasterFailed,
            Error::Output(_)
            | Error::WaitTimeout { .. }
            | Error::DeleteTimeout { .. }
            | Error::Replaced(_)
            | Error::Deleted(_) => Self::NotSucceeded,
        }
    }
}

impl From<&ImageError> for Exit {
    fn from(error: &ImageError) -> Self {
        match error {
            ImageError::NoImage(_)
            | ImageError::NoName { .. }
            | ImageError::AgentFile { .. }
            | ImageError::AgentUnfit { .. }
            | ImageError::AgentForeign { .. }
            | ImageError::NoAgent(_)
            | ImageError::NoScript { .. }
            | ImageError::NoPython { .. }
            | ImageError::Root(_)
            | ImageError::UserByName { .. }
            | ImageError::NothingToPull(_)
            | ImageError::Ignore(_)
            | ImageError::Loader(_)
            | ImageError::DockerHost { .. }
            | ImageError::NoDockerContext { .. }
            | ImageError::DockerFile { .. } => Self::BadInput,
            ImageError::Master(_) => Self::MasterFailed,
            ImageError::Context { .. }
            | ImageError::Unreachable { .. }
            | ImageError::NotFound { .. }
            | ImageError::Build { .. }
            | ImageError::Engine { .. }
            | ImageError::Push { .. }
            | ImageError::Login { .. }
            | ImageError::NoLoader { .. }
            | ImageError::Load { .. }
            | ImageError::Signals(_) => Self::ImageFailed,
            ImageError::Interrupted => Self::NotSucceeded,
        }
    }
}

impl From<&ClusterError> for Exit {
    fn from(error: &ClusterError) -> Self {
        if error.is_bad_input() { Self::BadInput } else { Self::MasterFailed }
    }
}

impl From<&MasterError> for Exit {
    fn from(error: &MasterError) -> Self {
        match error {
            MasterError::Refused(problem) => match (problem.status, problem.code) {
                (404, ErrorCode::UnknownRoute) => Self::MasterFailed,
                (400 | 404 | 413 | 422, _)
                | (409, ErrorCode::JobExists | ErrorCode::CannotScale | ErrorCode::CannotPush) => Self::BadInput,
                (_, _) => Self::MasterFailed,
            },
            MasterError::NoWay(error) => Self::from(&**error),
            MasterError::Setup(_)
            | MasterError::NotConnected { .. }
            | MasterError::Unreachable { .. }
            | MasterError::Silent { .. }
            | MasterError::NotAMaster { .. } => Self::MasterFailed,
        }
    }
}
