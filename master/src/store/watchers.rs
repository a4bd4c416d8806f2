//! Those who watch a store that lives in this process. Whoever holds the store's lock tells them, so that each hears
//! of the changes in their order.

use tokio::sync::mpsc;

use super::{StoreEvent, Stored};

/// Changes that may wait for a slow watcher before writers wait for it.
const BACKLOG: usize = 1024;

/// The watchers of one store.
#[derive(Debug, Default)]
pub struct Watchers(Vec<mpsc::Sender<StoreEvent>>);

impl Watchers {
    /// A new watcher, told of `present` first.
    pub fn add(&mut self, present: Vec<Stored>) -> mpsc::Receiver<StoreEvent> {
        let (sender, receiver) = mpsc::channel(BACKLOG + present.len());
        let present = present.into_iter().map(|stored| StoreEvent::Changed(Box::new(stored)));
        for event in present.chain([StoreEvent::Replayed]) {
            sender.try_send(event).expect("the channel has room for all that is present");
        }
        self.0.push(sender);
        receiver
    }

    /// Tells all, and forgets those that have gone. Blocks; not to be called from a task.
    pub fn tell(&mut self, event: &StoreEvent) {
        self.0.retain(|watcher| watcher.blocking_send(event.clone()).is_ok());
    }
}
