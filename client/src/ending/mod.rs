//! How a command ends: the client's error, and the exit code of each outcome.

pub(crate) mod error;
pub(crate) mod exit;
