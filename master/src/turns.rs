//! The turns of all gangs of this master. Each driver posts what its gang needs, and learns whether it may create pods.

use std::sync::Arc;
use std::time::Duration;

use job::turns::{Post, Table, Turn};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::mutex::Mutex;

/// The turns of all gangs. Clones share them.
#[derive(Debug, Clone)]
pub struct Turns(Arc<SharedTurns>);

#[derive(Debug)]
struct SharedTurns {
    began: Instant,
    table: Mutex<Table>,
    /// Notified when the turn of any job has changed.
    changes: watch::Sender<()>,
}

impl Default for Turns {
    fn default() -> Self {
        let (began, changes) = (Instant::now(), watch::Sender::new(()));
        Self(Arc::new(SharedTurns { began, table: Mutex::default(), changes }))
    }
}

impl Turns {
    /// Notes that each job that existed when the master began has a seat now.
    pub(crate) fn open(&self) {
        self.change(Table::open);
    }

    /// The seat of a job.
    pub(crate) fn seat(&self, uid: &str) -> Lane {
        Lane { uid: uid.to_owned(), turns: self.clone(), changes: self.0.changes.subscribe() }
    }

    /// Changes the table, and decides the turns.
    fn change(&self, change: impl FnOnce(&mut Table)) {
        let now = self.now();
        let has_changed = {
            let mut table = self.0.table.lock();
            let before = table.turns();
            change(&mut table);
            table.settle(now);
            table.turns() != before
        };
        if has_changed {
            self.0.changes.send_replace(());
        }
    }

    fn now(&self) -> Duration {
        self.0.began.elapsed()
    }
}

/// The entry of one job in the table of turns; no seat of a member. The job leaves the table when this is dropped.
#[derive(Debug)]
pub struct Lane {
    uid: String,
    turns: Turns,
    changes: watch::Receiver<()>,
}

impl Lane {
    /// Notes that the job's driver will post soon. Until then, but at most for `PATIENCE`, no other incomplete gang
    /// creates pods.
    pub(crate) fn expect(&self) {
        self.turns.change(|table| table.expect(self.uid.clone(), self.turns.now()));
    }

    /// Posts what the job's gang needs now. Returns its turn, and when to post again if nothing changes until then.
    pub fn post(&mut self, post: Post) -> (Turn, Option<Instant>) {
        self.changes.mark_unchanged();
        let now = self.turns.now();
        if !self.turns.0.table.lock().is_settled(&post, now) {
            self.turns.change(|table| table.post(post, now));
        }
        let table = self.turns.0.table.lock();
        (table.turn(&self.uid), table.next().map(|next| self.turns.0.began + next))
    }

    /// Leaves the table until the next post.
    pub fn leave(&self) {
        self.turns.change(|table| table.remove(&self.uid));
    }

    /// Waits until the job's turn differs from this turn.
    pub async fn changed_from(&mut self, turn: &Turn) {
        // The sender lives as long as `self.turns`.
        while self.turns.0.table.lock().turn(&self.uid) == *turn && self.changes.changed().await.is_ok() {}
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.leave();
    }
}
