//! Requests to agents, and the tokens that authorize them.

pub mod client;
pub mod token;
