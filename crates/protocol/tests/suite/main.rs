//! Tests of the messages.

mod aged_output;
mod agent;
mod batching;
mod code;
mod common;
mod dry_run;
mod duration;
mod group;
mod headline;
mod history;
mod ids;
mod image;
mod job;
mod join;
mod lease;
mod master;
mod metric;
mod pod;
mod series;
mod spent;
mod stacks;
mod text;
mod tf_config;
mod timeline;
mod view;
mod warm;
