//! The tests of the messages, in one program.

mod agent;
mod common;
mod ids;
mod image;
mod job;
mod pod;
mod tf_config;
mod view;
