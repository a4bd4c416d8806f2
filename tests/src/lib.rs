//! Support for end-to-end tests: starts the real programs, sets up places for jobs, and finds remaining processes.

pub mod balanced;
pub mod client;
pub mod cluster;
pub mod code;
pub mod config;
pub mod journeys;
pub mod machines;
pub mod master;
pub mod mixed_machines;
pub mod network;
pub mod place;
pub mod processes;
pub mod programs;
pub mod requests;
pub mod scene;
pub mod scripts;

/// A bearer token for masters in tests.
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

pub use client::{Finished, Running};
pub use master::Master;
pub use place::{Place, Stage};
pub use processes::within;
pub use scene::Scene;
