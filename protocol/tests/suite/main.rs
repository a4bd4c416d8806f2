//! Tests of the messages.

mod aged_output;
mod agent;
mod batching;
mod code;
mod common;
mod dry_run;
mod duration;
mod group;
mod ids;
mod image;
mod job;
mod join;
mod lease;
mod metric;
mod pod;
mod stacks;
mod text;
mod tf_config;
mod view;
mod warm;
