//! Kills the processes that a killed agent leaves behind.
//!
//! An agent is the parent of all orphans of its script. If the agent itself is killed, this master becomes their parent.
//! So every child that the master has not started is such an orphan.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::force::children;
use crate::mutex::Mutex;

/// Maximum time for orphans to end after SIGKILL. A process that waits for a disk or a GPU can take long.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two searches for orphans. A search reads all of `/proc`.
const PAUSE: Duration = Duration::from_millis(50);

/// The children that this process has started itself. `None` if orphans stay with another process.
#[derive(Debug, Clone)]
pub struct Orphans(Option<Arc<Mutex<HashSet<Pid>>>>);

impl Orphans {
    /// Makes this process the parent of orphans. Children that it has now, for example those of a shell that has become
    /// this program, are not orphans.
    pub fn adopted() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self(Some(Arc::new(Mutex::new(children(getpid()))))))
    }

    /// Leaves orphans to another process, such as init.
    pub fn ignored() -> Self {
        Self(None)
    }

    /// Starts a child that is no orphan.
    pub(super) fn start(&self, command: &mut Command) -> io::Result<Child> {
        let Some(started) = &self.0 else { return command.spawn() };
        // `kill_once` must not see the child before it is in the set.
        let mut started = started.lock();
        let child = command.spawn()?;
        started.extend(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        Ok(child)
    }

    /// Kills all orphans and their descendants, and waits for their end. A killed orphan leaves its own children to this
    /// process, so this searches again until there are none.
    pub(super) async fn kill(&self) {
        let deadline = Instant::now() + END_TIMEOUT;
        loop {
            let orphans = self.clone();
            // Fails only while the runtime shuts down.
            let left = spawn_blocking(move || orphans.kill_once()).await.unwrap_or_default();
            if left == 0 {
                return;
            }
            if Instant::now() >= deadline {
                return warn!(left, "processes of a killed agent do not end, and may keep their memory and GPUs");
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends SIGKILL to all orphans, and reaps those that have ended. Returns how many there were.
    fn kill_once(&self) -> usize {
        let Some(started) = &self.0 else { return 0 };
        let mut started = started.lock();
        let children = children(getpid());
        started.retain(|child| children.contains(child));
        let orphans: Vec<Pid> = children.difference(&started).copied().collect();
        for orphan in &orphans {
            // Until it is reaped here, no other process can have this number.
            let _ = kill_process(*orphan, Signal::KILL);
            let _ = waitpid(Some(*orphan), WaitOptions::NOHANG);
        }
        orphans.len()
    }
}
