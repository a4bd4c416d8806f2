//! Why a request to the master failed. Callers retry and repair some of these errors.

use std::sync::Arc;

use protocol::error::{ErrorCode, Problem};

use crate::address::master_url::MasterUrl;
use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::output::command_line::command;

/// Why a request to the master failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MasterError {
    /// The HTTP client could not be created, for example because the system has no certificates.
    #[error("set up the HTTP client: {0}")]
    Setup(String),
    /// There was no connection, so nothing was sent.
    #[error("the master at {url} cannot be reached: {reason}")]
    NotConnected {
        /// The master's address.
        url: MasterUrl,
        /// The system's error text. A `String` would make all results of the client larger.
        reason: Box<str>,
    },
    /// The connection broke.
    #[error("the master at {url} cannot be reached: {reason}")]
    Unreachable {
        /// The master's address.
        url: MasterUrl,
        /// The system's error text. A `String` would make all results of the client larger.
        reason: Box<str>,
    },
    /// The connection through the Kubernetes API failed.
    #[error(transparent)]
    NoWay(Arc<Error>),
    /// The master accepted the connection, but did not respond.
    #[error("the master at {url} did not answer in time")]
    Silent {
        /// The master's address.
        url: MasterUrl,
    },
    /// The master refused the request.
    #[error("{}", .0.detail)]
    Refused(Problem),
    /// Another program listens at this address.
    #[error("{url} answers, but not as a Muster master (HTTP status {status})")]
    NotAMaster {
        /// The address.
        url: MasterUrl,
        /// The HTTP status of the response.
        status: u16,
    },
}

impl MasterError {
    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        let gateway_trouble = |status: u16| matches!(status, 502..=504);
        match self {
            Self::NotConnected { .. } | Self::Unreachable { .. } | Self::Silent { .. } => true,
            Self::Refused(problem) => gateway_trouble(problem.status),
            Self::NotAMaster { status, .. } => gateway_trouble(*status),
            Self::NoWay(error) => matches!(error.cause, Cause::Passing),
            Self::Setup(_) => false,
        }
    }

    /// Whether the master may have done what the request asked for, although the answer did not arrive.
    pub(crate) fn leaves_doubt(&self) -> bool {
        self.is_transient() && !matches!(self, Self::NotConnected { .. })
    }

    /// Whether the master answered that the job or the route does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == 404)
    }

    fn exit_and_hint(&self) -> (Exit, Option<String>) {
        let hint = match self {
            Self::Refused(problem) => return (exit(problem), hint(problem.code)),
            Self::NoWay(error) => return (error.exit, error.hint.clone()),
            Self::NotConnected { .. } | Self::Unreachable { .. } | Self::Silent { .. } => {
                Some("is the master running, and is --master (or MUSTER_MASTER) its address?")
            }
            Self::NotAMaster { .. } => Some("check --master (or MUSTER_MASTER): host, port and path"),
            Self::Setup(_) => None,
        };
        (Exit::MasterFailed, hint.map(str::to_owned))
    }
}

fn exit(problem: &Problem) -> Exit {
    match (problem.status, problem.code) {
        (404, ErrorCode::UnknownRoute) => Exit::MasterFailed,
        (400 | 404 | 413 | 422, _) | (409, ErrorCode::JobExists | ErrorCode::CannotScale | ErrorCode::CannotPush) => {
            Exit::BadInput
        }
        (_, _) => Exit::MasterFailed,
    }
}

/// A hint for the error codes whose `detail` contains no hint.
fn hint(code: ErrorCode) -> Option<String> {
    if code == ErrorCode::UnknownJob {
        return Some(format!("to see the jobs that this master knows: {}", command("list")));
    }
    let hints = [
        (ErrorCode::Unauthorized, "give the master's token in MUSTER_TOKEN or with --token-file FILE"),
        (ErrorCode::Forbidden, "give the master's token in MUSTER_TOKEN or with --token-file FILE"),
        (ErrorCode::JobExists, "add --replace to delete that job first, or choose another --task"),
        (ErrorCode::Unavailable, "try again later"),
        (ErrorCode::UnknownRoute, "the master and this client have different versions: use the same version of both"),
    ];
    hints.into_iter().find(|(hinted, _)| *hinted == code).map(|(_, hint)| hint.to_owned())
}

impl From<MasterError> for Error {
    fn from(error: MasterError) -> Self {
        let (exit, hint) = error.exit_and_hint();
        let mut failed = Self::new(exit, error.to_string()).cause(Cause::Master(Box::new(error)));
        failed.hint = hint;
        failed
    }
}
