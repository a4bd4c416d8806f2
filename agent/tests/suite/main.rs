//! The tests of the agent, in one program: linking it is most of what building tests costs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod ending;
mod environments;
mod logs;
mod memory;
mod phase_tables;
mod protocol_over_http;
mod stopping_leaves_no_survivor;
mod support;
mod terminating;
mod tokens;
mod unstartable;
