//! The states and rules of a job: pure functions over values. The functions use no runtime, HTTP, clock or environment.
//! The caller passes the time and carries out the actions.

mod agent_state;
pub mod alone;
pub mod batching;
pub mod diagnosis;
pub mod gang;
pub mod key;
pub mod need;
pub mod observation;
mod peers;
pub mod phase;
pub mod plan;
pub mod policy;
pub mod rendezvous;
pub mod replica;
pub mod roster;
pub mod tracked;
pub mod turns;
pub mod upkeep;
pub mod wait;
pub mod warm;
