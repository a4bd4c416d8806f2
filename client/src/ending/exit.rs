//! The client's exit codes. The help in `args.rs` lists the codes.

use std::process::ExitCode;

use protocol::view::JobState;

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
