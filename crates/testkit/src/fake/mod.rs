//! Fake pods and records in memory.

mod agent;
mod backend;
mod room;
mod routes;
mod store;

use std::path::Path;
use std::sync::Arc;

use master::code::CodeStore;

pub use self::agent::{AgentEvent, FakeAgent, History, TakesCode};
pub use self::backend::{Arrival, FakeBackend, PodChange, PodEvent};
pub use self::store::{FakeStore, Written};

/// The history in a folder below this folder.
pub fn history_below(folder: &Path) -> history::History {
    history::History::at(folder.join("history"))
}

/// An empty store of code below this folder, with room for 16 MiB.
///
/// # Panics
/// Panics if the folder cannot be created.
pub fn code_below(folder: &Path) -> Arc<CodeStore> {
    Arc::new(CodeStore::with_room(&folder.join("code"), 16 << 20).expect("could not create the folder"))
}
