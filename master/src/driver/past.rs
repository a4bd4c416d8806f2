//! Keeps a job that has ended in the history, which outlives the job's record. If that fails, only the history lacks the
//! job.

use protocol::history::{LAST_OUTPUT_BYTES, PastJob};
use protocol::view::JobResult;
use tokio::task::spawn_blocking;
use tracing::warn;

use super::Driver;

impl Driver {
    /// Writes the job's file. A master that has taken the job over writes the file if an earlier master did not.
    pub(super) async fn keep_in_history(&mut self) {
        if std::mem::replace(&mut self.is_in_history, true) {
            return;
        }
        let Some(view) = self.shown.view().as_ended() else { return };
        let (history, now) = (self.ledger.history(), self.ledger.now());
        let (asked, known) = (history.clone(), view.clone());
        // If the history cannot be read, the attempt to write says why.
        if spawn_blocking(move || asked.lacks(&known)).await.is_ok_and(|lacks| lacks.is_ok_and(|lacks| !lacks)) {
            return;
        }
        let (timeline, series) = (self.timeline.shown(&view, now), self.pods.last_series(&view, now).await);
        self.ledger.count_time(&timeline.spent);
        let last_output = match &view.result {
            Some(JobResult::Failed { failure }) => match failure.replica() {
                Some(replica) => self.pods.last_output(replica, LAST_OUTPUT_BYTES).await,
                None => String::new(),
            },
            Some(JobResult::Succeeded | JobResult::Cancelled) | None => String::new(),
        };
        let kept = spawn_blocking(move || history.keep(&PastJob { view, timeline, series, last_output })).await;
        match kept.map_err(std::io::Error::from).flatten() {
            Ok(()) => self.pods.move_series_to_history(),
            Err(error) => warn!(job = %self.ledger.name(), %error, "could not keep the job in the history"),
        }
    }
}
