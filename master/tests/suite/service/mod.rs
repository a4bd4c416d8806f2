//! Tests of the drivers, the registry and the HTTP service, with the fake back end and the fake store.

mod applying;
mod asking;
mod breaking;
mod code_copies;
pub(crate) mod delivering;
mod describing;
mod driving;
mod elastic;
mod endings;
mod framing;
mod guarding;
mod halting;
pub(crate) mod harness;
mod keeping;
mod logs;
mod patience;
mod pushing;
mod reporting;
mod restarting;
mod stacks;
mod submitting;
mod suspending;
mod takeover;
mod times;
pub(crate) mod turns;
mod unreachable;
mod warming;
