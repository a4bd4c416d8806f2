//! The suites that every implementation of a seam passes.

pub mod backend;
pub mod store;
