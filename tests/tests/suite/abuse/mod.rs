//! Hostile and broken requests. They must have no effect, must not break the master, and must not delay other callers.
//! Each test sends a small number; `make abuse` sends the full number and prints the counts.

mod browsers;
mod caller;
mod canary;
mod malformed;
mod slow;
