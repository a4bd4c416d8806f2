//! The agent's tests. They are one program, because linking takes most of the time of building tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod arguments;
mod code;
mod ending;
mod environments;
mod fence;
mod helper;
mod installing;
mod joining;
mod logs;
mod memory;
mod phase_tables;
mod posts;
mod protocol_over_http;
mod pushing;
mod several;
mod stacks;
mod stopping_leaves_no_survivor;
mod support;
mod terminating;
mod tokens;
mod unstartable;
mod warm;
mod warm_fidelity;
