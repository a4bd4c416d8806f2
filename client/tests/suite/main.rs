//! The tests of the client, in one program, because linking is the slowest part of building tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod bringing;
mod docker;
mod dry_run;
mod env;
mod follow;
mod headlines;
mod history;
mod local;
mod logs;
mod master_trouble;
mod placing;
mod pushing;
mod recorded_engines;
mod registry;
mod spawning;
mod support;
mod terminal;
mod ui;
mod ui_in_browser;
mod verbs;
