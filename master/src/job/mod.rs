//! What a job is and how it moves: pure functions over values. No runtime, no HTTP, no clock, no environment;
//! time is an argument, and whoever calls carries out the actions.

pub mod diagnosis;
pub mod gang;
pub mod key;
pub mod observation;
pub mod phase;
pub mod plan;
pub mod policy;
pub mod rendezvous;
pub mod replica;
