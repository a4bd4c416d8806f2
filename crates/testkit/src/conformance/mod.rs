//! The suites that every implementation of the master's traits must pass.

pub mod backend;
pub mod store;
