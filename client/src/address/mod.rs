//! Where the master is, and what the environment says about it.

pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod kube_place;
pub(crate) mod master_url;
