//! How a command ends: every error with its hint and its cause, and the exit code of each outcome.

pub(crate) mod error;
pub(crate) mod exit;
pub(crate) mod root_cause;
