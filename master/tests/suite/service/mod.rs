//! Jobs over the fake back end and the fake store: drivers, registry and HTTP service.

mod asking;
mod breaking;
mod describing;
mod driving;
mod elastic;
mod endings;
mod framing;
mod guarding;
mod harness;
mod logs;
mod patience;
mod restarting;
mod submitting;
mod suspending;
mod takeover;
mod unreachable;
mod warming;
