//! Counts open requests. With this count, the agent notices that no master sends requests any more.

use std::time::Duration;

use protocol::agent::{RunState, RunStatus};
use tokio::sync::watch;
use tokio::time::timeout;

/// The counter of open requests.
#[derive(Debug, Clone, Default)]
pub struct Activity {
    /// The number of open requests. Each beginning and each end of a request notifies the receivers.
    open: watch::Sender<u64>,
}

/// One open request. It is dropped when its answer is complete.
#[derive(Debug)]
pub struct OpenRequest {
    activity: Activity,
}

impl Activity {
    /// Counts a request until the returned value is dropped.
    pub fn begin(&self) -> OpenRequest {
        self.open.send_modify(|open| *open += 1);
        OpenRequest { activity: self.clone() }
    }

    /// Returns when no request was open for the time `pause`.
    pub async fn quiet(&self, pause: Duration) {
        let mut requests = self.open.subscribe();
        loop {
            let open = *requests.borrow_and_update();
            let limit = if open == 0 { pause } else { Duration::MAX };
            if !matches!(timeout(limit, requests.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Returns when the run has ended and no request was open for the time `linger` after that.
    pub async fn abandoned(&self, mut status: watch::Receiver<RunStatus>, linger: Duration) {
        let mut requests = self.open.subscribe();
        loop {
            let open = *requests.borrow_and_update();
            let state = status.borrow_and_update().state;
            let change = async {
                tokio::select! {
                    result = requests.changed() => result,
                    result = status.changed() => result,
                }
            };
            let limit = if open == 0 && state == RunState::Exited { linger } else { Duration::MAX };
            match timeout(limit, change).await {
                Ok(Ok(())) => {}
                // The runner has ended, so the agent is already ending.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_elapsed) => return,
            }
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.activity.open.send_modify(|open| *open -= 1);
    }
}
