//! The exit code and the hint for a request to the master that failed.

use master_client::MasterError;
use protocol::error::{ErrorCode, Problem};

use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::output::command_line::command;

impl From<MasterError> for Error {
    fn from(error: MasterError) -> Self {
        let (exit, hint) = exit_and_hint(&error);
        let mut failed = Self::new(exit, error.to_string()).cause(Cause::Master(Box::new(error)));
        failed.hint = hint;
        failed
    }
}

fn exit_and_hint(error: &MasterError) -> (Exit, Option<String>) {
    let hint = match error {
        MasterError::Refused(problem) => return (exit(problem), hint(problem.code)),
        MasterError::NoWay(trouble) => return (Exit::MasterFailed, trouble.hint.clone()),
        MasterError::NotConnected { .. } | MasterError::Unreachable { .. } | MasterError::Silent { .. } => {
            Some("is the master running, and is --master (or MUSTER_MASTER) its address?")
        }
        MasterError::NotAMaster { .. } => Some("check --master (or MUSTER_MASTER): host, port and path"),
        MasterError::Setup(_) => None,
    };
    (Exit::MasterFailed, hint.map(str::to_owned))
}

fn exit(problem: &Problem) -> Exit {
    match (problem.status, problem.code) {
        (404, ErrorCode::UnknownRoute) => Exit::MasterFailed,
        (400 | 404 | 413 | 422, _)
        | (409, ErrorCode::JobExists | ErrorCode::CannotScale | ErrorCode::CannotPush | ErrorCode::CodeMissing) => {
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
