//! Jobs over the fake back end and the fake store: drivers and registry, and the HTTP service before them.

mod asking;
mod breaking;
mod describing;
mod driving;
mod endings;
mod framing;
mod guarding;
mod harness;
mod logs;
mod patience;
mod restarting;
mod submitting;
mod takeover;
