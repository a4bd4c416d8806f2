//! Jobs over the fake back end and the fake store: drivers and registry, and the HTTP service before them.

mod asking;
mod driving;
mod endings;
mod guarding;
mod harness;
mod logs;
mod restarting;
mod submitting;
mod takeover;
