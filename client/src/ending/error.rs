//! The client's error. An error is built where it occurs, with its sentence, its hint and its exit code.

use std::io;
use std::sync::Arc;

use protocol::error::{ErrorCode, Problem};

use crate::ending::exit::Exit;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
pub(crate) struct Error {
    sentence: String,
    source: Option<Source>,
    /// The next step for the user, if there is one.
    pub(crate) hint: Option<String>,
    pub(crate) exit: Exit,
    pub(crate) cause: Cause,
}

/// The causes to which the client itself reacts.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Any cause that only the user can react to.
    Other,
    /// A request to the master failed.
    Master(Box<MasterError>),
    /// The files of a job cannot be packed, or its script does not parse. A change of the files may help.
    Files,
    /// The user lacks a right in the cluster.
    Forbidden,
    /// The cluster or its master cannot be reached at present. A retry may succeed.
    Passing,
    /// The reader has closed stdout, as `head` does. Such an error is not reported.
    ClosedStdout,
}

impl Error {
    pub(crate) fn new(exit: Exit, sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), source: None, hint: None, exit, cause: Cause::Other }
    }

    /// An error for [`Exit::BadInput`].
    pub(crate) fn input(sentence: impl Into<String>) -> Self {
        Self::new(Exit::BadInput, sentence)
    }

    /// An error for [`Exit::MasterFailed`].
    pub(crate) fn master(sentence: impl Into<String>) -> Self {
        Self::new(Exit::MasterFailed, sentence)
    }

    /// An error for [`Exit::ImageFailed`].
    pub(crate) fn image(sentence: impl Into<String>) -> Self {
        Self::new(Exit::ImageFailed, sentence)
    }

    /// An error for [`Exit::NotSucceeded`].
    pub(crate) fn unsuccessful(sentence: impl Into<String>) -> Self {
        Self::new(Exit::NotSucceeded, sentence)
    }

    /// The error if the runtime cannot start, or if signals cannot be caught.
    pub(crate) fn no_runtime(source: io::Error) -> Self {
        Self::master("start the client's runtime").because(source)
    }

    /// Adds the next step for the user.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Adds the error that is printed after the sentence.
    pub(crate) fn because(self, source: impl Into<Source>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    pub(crate) fn cause(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// Puts the name of the wrong flag, variable or file in front of the sentence.
    pub(crate) fn at(self, place: &str) -> Self {
        Self { sentence: format!("{place}: {}", self.sentence), ..self }
    }

    /// The kind of the I/O error, if the source is an I/O error.
    pub(crate) fn io_kind(&self) -> Option<io::ErrorKind> {
        self.source.as_ref()?.downcast_ref::<io::Error>().map(io::Error::kind)
    }
}

/// Why a request to the master failed. Callers retry and repair some of these errors.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MasterError {
    /// The HTTP client could not be created, for example because the system has no certificates.
    #[error("set up the HTTP client: {0}")]
    Setup(String),
    /// There was no connection, so nothing was sent.
    #[error("the master at {url} cannot be reached: {reason}")]
    NotConnected {
        /// The master's address.
        url: Box<str>,
        /// The system's error text. A `String` would make all results of the client larger.
        reason: Box<str>,
    },
    /// The connection broke.
    #[error("the master at {url} cannot be reached: {reason}")]
    Unreachable {
        /// The master's address.
        url: Box<str>,
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
        url: Box<str>,
    },
    /// The master refused the request.
    #[error("{}", .0.detail)]
    Refused(Problem),
    /// Another program listens at this address.
    #[error("{url} answers, but not as a Muster master (HTTP status {status})")]
    NotAMaster {
        /// The address.
        url: Box<str>,
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

    /// Whether the master answered that it does not have the code, or its manifest.
    pub(crate) fn lacks_code(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.code == ErrorCode::CodeMissing)
    }

    /// Whether the master answered that the job or the route does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == 404)
    }
}

/// The text of the innermost cause. The outer errors of libraries only repeat addresses and name parts of the library.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
