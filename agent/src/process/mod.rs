//! Processes of this machine: how a script's process is started with its environment, found, signalled and reaped.

pub mod arguments;
pub mod child;
pub(crate) mod clock;
pub mod environment;
pub(crate) mod proc;
pub mod reaper;
pub mod script;
pub mod shim;
