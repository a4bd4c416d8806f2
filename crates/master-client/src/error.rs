//! Why a request to a master failed.

use std::error::Error;
use std::sync::Arc;

use protocol::error::{ErrorCode, Problem};

/// Why a request to the master failed. Callers retry and repair some of these errors.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
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
    /// The connection through the tunnel failed.
    #[error("{}", .0.sentence)]
    NoWay(Arc<TunnelTrouble>),
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
    pub fn is_transient(&self) -> bool {
        let gateway_trouble = |status: u16| matches!(status, 502..=504);
        match self {
            Self::NotConnected { .. } | Self::Unreachable { .. } | Self::Silent { .. } => true,
            Self::Refused(problem) => gateway_trouble(problem.status),
            Self::NotAMaster { status, .. } => gateway_trouble(*status),
            Self::NoWay(trouble) => trouble.is_passing,
            Self::Setup(_) => false,
        }
    }

    /// Whether the master may have done what the request asked for, although the answer did not arrive.
    pub fn leaves_doubt(&self) -> bool {
        self.is_transient() && !matches!(self, Self::NotConnected { .. })
    }

    /// Whether the master answered that it does not have the code, or its manifest.
    pub fn lacks_code(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.code == ErrorCode::CodeMissing)
    }

    /// Whether the master answered that the job or the route does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == 404)
    }
}

/// Why a connection through a [`Tunnel`](crate::Tunnel) failed.
#[derive(Debug)]
pub struct TunnelTrouble {
    /// What failed.
    pub sentence: String,
    /// The next step for the user, if there is one.
    pub hint: Option<String>,
    /// Whether a retry may succeed.
    pub is_passing: bool,
}

/// The text of the innermost cause. The outer errors of libraries only repeat addresses and name parts of the library.
pub fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
