//! What Muster's programs say to each other: names, messages, routes and errors.
//!
//! No I/O, no async, no clock. A message is defined once, here, for the side that sends it and the side that reads it.

pub mod agent;
pub mod env;
pub mod error;
pub mod failure;
pub mod ids;
pub mod image;
pub mod job;
#[cfg(feature = "openapi")]
mod openapi;
pub mod pod;
pub mod routes;
pub mod run_policy;
mod spec_error;
mod strategy;
pub mod text;
pub mod tf_config;
pub mod view;
