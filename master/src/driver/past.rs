//! Keeps a job that has ended in the history, which outlives the job's record. A task does this, because the driver must
//! handle events while the task reads long output. If the file cannot be written, the driver tries again before it deletes
//! the record. If that fails too, only the history lacks the job.

use std::sync::Arc;

use protocol::history::{LAST_OUTPUT_BYTES, PastJob};
use protocol::ids::UnixMillis;
use protocol::progress::JobSeries;
use protocol::view::{JobResult, JobView};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::Driver;
use super::context::{Context, Kept};
use super::pods::LAST_OUTPUT_TIMEOUT;
use crate::error_chain::error_chain;

/// Whether the history has the job, as far as this driver knows.
#[derive(Default)]
pub(super) enum Past {
    /// The job has not ended, or the driver has not looked yet.
    #[default]
    Unknown,
    /// The task that keeps the job. It returns what it could not write.
    Keeping(AbortOnDropHandle<Option<Box<Unwritten>>>),
    /// The task has ended, but could not write this.
    Unwritten(Box<Unwritten>),
    /// The history has the job, or will never have it.
    Kept,
}

impl Past {
    pub(super) fn is_underway(&self) -> bool {
        matches!(self, Self::Keeping(_))
    }

    /// Waits until the task has ended.
    pub(super) async fn kept(&mut self) {
        let Self::Keeping(task) = self else { return };
        let unwritten = task.await.unwrap_or_else(|failure| {
            warn!(%failure, "the task that keeps a job in the history panicked");
            None
        });
        *self = unwritten.map_or(Self::Kept, Self::Unwritten);
    }

    /// Tries again to write what could not be written.
    pub(super) async fn try_again(&mut self) {
        if let Self::Unwritten(unwritten) = std::mem::replace(self, Self::Kept) {
            unwritten.write().await;
        }
    }
}

/// The file of a job that could not be written.
pub(super) struct Unwritten {
    job: PastJob,
    kept: Kept,
    context: Arc<Context>,
}

impl Unwritten {
    /// Writes the job's file. Returns itself if that fails.
    async fn write(self: Box<Self>) -> Option<Box<Self>> {
        let write = move || (self.context.history.keep(&self.job), self);
        match spawn_blocking(write).await {
            Ok((Ok(()), written)) => {
                written.kept.series.move_to_history();
                None
            }
            Ok((Err(error), unwritten)) => {
                warn!(job = %unwritten.job.view.name, %error, "could not keep the job in the history");
                Some(unwritten)
            }
            Err(failure) => {
                warn!(%failure, "the thread that keeps a job in the history panicked");
                None
            }
        }
    }
}

impl Driver {
    /// Begins to write the job's file. A master that has taken the job over writes the file if an earlier master did
    /// not.
    pub(super) fn keep_in_history(&mut self) {
        if !matches!(self.past, Past::Unknown) {
            return;
        }
        let Some(view) = self.shown.view().as_ended() else {
            self.past = Past::Kept;
            return;
        };
        let (kept, context, now) = (self.pods.kept(), Arc::clone(self.ledger.context()), self.ledger.now());
        let keep = EndedJob { view, kept, context, now }.keep();
        self.past = Past::Keeping(AbortOnDropHandle::new(tokio::spawn(keep)));
    }
}

/// A job that has ended, and what the master keeps of it.
struct EndedJob {
    view: JobView,
    kept: Kept,
    context: Arc<Context>,
    now: UnixMillis,
}

impl EndedJob {
    /// Writes the job's file, unless the history has the job. Returns what could not be written.
    async fn keep(self) -> Option<Box<Unwritten>> {
        let (history, known) = (self.context.history.clone(), self.view.clone());
        // If the history cannot be read, the attempt to write says why.
        if spawn_blocking(move || history.lacks(&known)).await.is_ok_and(|lacks| lacks.is_ok_and(|lacks| !lacks)) {
            return None;
        }
        let (timeline, series) = (self.kept.timeline.shown(&self.view, self.now), self.last_series().await);
        self.context.tally.spend(&timeline.spent);
        let last_output = self.last_output().await;
        let Self { view, kept, context, now: _ } = self;
        let job = PastJob { view, timeline, series, last_output };
        Box::new(Unwritten { job, kept, context }).write().await
    }

    /// The series. If the job has metrics, first waits until the last output is copied.
    async fn last_series(&self) -> JobSeries {
        let Self { view, kept: Kept { logs, series, .. }, now, .. } = self;
        if !view.spec.metrics.is_empty()
            && let Some(log) = view.first_training().and_then(|id| logs.of(id))
        {
            // The history lacks the numbers in any output that arrives after this timeout.
            let _ = timeout(LAST_OUTPUT_TIMEOUT, log.completed()).await;
        }
        if let Err(error) = series.read_metrics(view, logs, *now).await {
            warn!(job = %view.name, error = error_chain(&error), "cannot read metrics from a job's output");
        }
        series.shown(None, None)
    }

    /// The end of the output of the replica that failed first.
    async fn last_output(&self) -> String {
        let Some(JobResult::Failed { failure }) = &self.view.result else { return String::new() };
        match failure.replica().and_then(|replica| self.kept.logs.of(replica)) {
            Some(log) => log.end(LAST_OUTPUT_BYTES).await,
            None => String::new(),
        }
    }
}
