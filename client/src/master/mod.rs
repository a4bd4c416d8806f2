//! The master: errors of requests to it, the patience while it cannot be reached, and the local master of one job.

pub(crate) mod announcement;
pub(crate) mod error;
pub(crate) mod local;
pub(crate) mod local_checks;
pub(crate) mod patience;
