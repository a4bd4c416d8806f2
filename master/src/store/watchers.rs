//! The watchers of a store in this process. Changes are sent while the store's lock is held, so that all watchers
//! receive the changes in order.

use tokio::sync::mpsc;

use super::{StoreEvent, Stored};

/// Maximum changes that wait for a slow watcher. If there are more, the store's writers wait.
const BACKLOG: usize = 1024;

/// The watchers of one store.
#[derive(Debug, Default)]
pub struct Watchers(Vec<mpsc::Sender<StoreEvent>>);

impl Watchers {
    /// Adds a watcher. The watcher receives `present` first.
    pub fn add(&mut self, present: Vec<Stored>, all_readable: bool) -> mpsc::Receiver<StoreEvent> {
        let (sender, receiver) = mpsc::channel(BACKLOG + present.len());
        let present = present.into_iter().map(|stored| StoreEvent::Changed(Box::new(stored)));
        for event in present.chain([StoreEvent::Replayed { all_readable }]) {
            sender.try_send(event).expect("the channel has room for every present record");
        }
        self.0.push(sender);
        receiver
    }

    /// Sends an event to all watchers, and removes closed watchers. This blocks: do not call it from an async task.
    pub fn tell(&mut self, event: &StoreEvent) {
        self.0.retain(|watcher| watcher.blocking_send(event.clone()).is_ok());
    }
}
