//! The files that a job brings: which files, how they are packed, and when they change.

pub(crate) mod changes;
pub(crate) mod ignored;
pub(crate) mod pack;
