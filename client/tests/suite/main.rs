//! The tests of the client, in one program: linking it is most of what building tests costs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod docker;
mod env;
mod follow;
mod local;
mod master_trouble;
mod placing;
mod recorded_engines;
mod registry;
mod support;
mod terminal;
mod verbs;
