//! Where the master is, and what the environment says about it.

pub(crate) mod config;
pub(crate) mod connection;
