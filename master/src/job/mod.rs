//! What a job is and how it moves: pure functions over values. They use no runtime, HTTP, clock or environment.
//! Time is an argument, and the caller carries out the actions.

pub mod diagnosis;
pub mod gang;
pub mod key;
pub mod observation;
pub mod phase;
pub mod plan;
pub mod policy;
pub mod rendezvous;
pub mod replica;
