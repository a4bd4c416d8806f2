//! The client's error. An error is built where it occurs, with its sentence, its hint and its exit code.

use std::io;

use master_client::MasterError;

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
