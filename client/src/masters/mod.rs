//! Which masters a command asks, and where it finds a job: at a master, or in a history.

pub(crate) mod finder;
pub(crate) mod past;
pub(crate) mod upstream;
pub(crate) mod which_master;
