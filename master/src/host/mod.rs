//! The master's own process and machine: its folder and files, its signals, and its limit of open files.

pub mod clock;
pub mod descriptors;
pub(crate) mod files;
pub(crate) mod signals;
pub(crate) mod state_dir;
