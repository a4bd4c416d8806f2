//! The last seconds of an agent whose processes have ended. Readers get the rest of the output if time allows.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout_at;
use tracing::warn;

use crate::activity::Activity;
use crate::run::AgentEnd;

/// How long it may take to copy the last output to the agent's own streams.
const MIRROR_LIMIT: Duration = Duration::from_secs(5);

/// How long open answers may take to finish.
const HTTP_LIMIT: Duration = Duration::from_secs(5);

/// How long an agent that got SIGTERM still answers new requests after its run has ended. A master uses this time to
/// copy the rest of the output.
const READERS_LIMIT: Duration = Duration::from_secs(2);

/// If no request is open for this long, the agent assumes that no readers are left.
const READERS_PAUSE: Duration = Duration::from_millis(500);

/// The task that answers requests.
pub(crate) struct HttpTask {
    /// Dropping this sender ends the task.
    pub(crate) end: oneshot::Sender<Infallible>,
    pub(crate) task: JoinHandle<()>,
}

/// Waits for readers and open answers, each within its limit.
pub(crate) async fn wind_down(end: AgentEnd, activity: &Activity, http: HttpTask, mirror: Option<JoinHandle<()>>) {
    let mut cut_off = end.at_most(HTTP_LIMIT);
    if end.signal_deadline.is_some() {
        cut_off = end.at_most(READERS_LIMIT);
        // Readers that are still connected after this time are cut off below.
        let _ = timeout_at(cut_off, activity.quiet(READERS_PAUSE)).await;
    }
    drop(http.end);
    if timeout_at(cut_off, http.task).await.is_err() {
        warn!("open answers are cut off");
    }
    if let Some(mirror) = mirror
        && timeout_at(end.at_most(MIRROR_LIMIT), mirror).await.is_err()
    {
        warn!("nobody reads the agent's stdout and stderr; the last output is lost");
    }
}

impl AgentEnd {
    /// The deadline of a wait that begins now: after `limit`, or at the agent's own deadline if that is earlier.
    fn at_most(&self, limit: Duration) -> tokio::time::Instant {
        let end = Instant::now() + limit;
        self.signal_deadline.map_or(end, |deadline| deadline.min(end)).into()
    }
}
