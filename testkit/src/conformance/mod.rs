//! The suites that every implementation of the master's traits passes.

pub mod backend;
pub mod store;
