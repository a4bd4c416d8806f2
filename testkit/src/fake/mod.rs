//! Fake pods and records in memory.

mod agent;
mod backend;
mod routes;
mod store;

pub use self::agent::{AgentEvent, FakeAgent, History};
pub use self::backend::{Arrival, FakeBackend, PodChange, PodEvent};
pub use self::store::{FakeStore, Written};
