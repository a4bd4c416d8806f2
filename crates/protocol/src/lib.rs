//! The wire contract of Muster's programs: names, messages, routes and errors.
//!
//! No I/O, no async, no clock. Sender and reader share one definition of each message.

pub mod about;
mod accounting;
pub mod aged_output;
pub mod agent;
mod as_text;
pub mod batching;
pub mod callers;
pub mod code;
pub mod deletion;
pub mod dry_run;
pub mod duration;
pub mod elastic;
mod ensure;
pub mod env;
pub mod error;
pub mod expansion;
pub mod failure;
pub mod group;
pub mod headline;
pub mod history;
pub mod ids;
pub mod image;
pub mod job;
pub mod join;
mod known_fields;
pub mod lease;
pub mod master;
pub mod metric;
#[cfg(feature = "openapi")]
mod openapi;
pub mod origin;
pub mod output;
pub mod patch;
pub mod pause;
pub mod pod;
pub mod processes;
pub mod progress;
pub mod routes;
pub mod run_policy;
mod spec_batches;
mod spec_checks;
mod spec_error;
mod spec_processes;
mod spec_replicas;
pub mod spent;
pub mod stacks;
pub mod starts;
mod strategy;
pub mod text;
pub mod tf_config;
pub mod tfjob;
pub mod timeline;
pub mod usage;
pub mod view;
pub mod warm;

/// Whether a value is its type's default. serde leaves out the fields for which this is true.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Takes at most `most` bytes from the beginning of `input`.
fn taken<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    taken
}
