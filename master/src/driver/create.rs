//! Creates a job's pods. If a quota has no room, creation is retried until the start timeout.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use protocol::failure::NEVER_STARTED;
use protocol::ids::ReplicaId;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::warn;

use super::act::PODS_AT_ONCE;
use super::subject::Subject;
use super::{Driver, Report, tasks};
use crate::backend::{BackendError, PodSpec};
use crate::error_chain::error_chain;
use crate::job::observation::{AgentState, LostRun};

/// Pause before the next attempt when a quota has no room. No event says that it has room again: pods of other programs use
/// it too, an administrator may raise it, and the API counts a deleted pod until a moment after the watch has reported its
/// end. A watch of the quotas would be one more right of the master.
const QUOTA_PAUSE: Duration = Duration::from_secs(5);

impl Driver {
    /// Creates the missing pods.
    pub(super) fn create_missing(&mut self) {
        let missing = self.replicas.iter().filter(|(_, replica)| replica.seen.pod.is_none());
        let missing: Vec<ReplicaId> = missing.map(|(id, _)| *id).collect();
        if !missing.is_empty() {
            self.create_pods(&missing);
        }
    }

    /// Creates the pods of these replicas.
    pub(super) fn create_pods(&mut self, replicas: &[ReplicaId]) {
        let record = &self.stored.record;
        let pod = |id: ReplicaId| PodSpec::new(self.stored.key(), &record.spec, id, self.token.sha256());
        let known = replicas.iter().filter_map(|id| Some((self.replicas.get(id)?.subject(*id), pod(*id))));
        let pods: Vec<_> = known.collect();
        let (backend, reporter, job) = (Arc::clone(&self.context.backend), self.reporter.clone(), self.stored.key());
        self.creations.retain(|creation| !creation.is_finished());
        let creation = tasks::spawn(&self.reporter, async move {
            let all: Vec<Subject> = pods.iter().map(|(subject, _)| *subject).collect();
            if let Err(error) = within_quota(&reporter, &all, || backend.prepare(&job)).await {
                warn!(job = %job.name, error = error_chain(&error), "could not create any pod");
                for subject in all {
                    tasks::report(&reporter, subject, AgentState::Failed(not_created(&error))).await;
                }
                return;
            }
            let create = async |(subject, pod): (Subject, PodSpec)| {
                let attempt = || backend.create(pod.clone());
                if let Err(error) = within_quota(&reporter, &[subject], attempt).await {
                    tasks::report(&reporter, subject, AgentState::Failed(not_created(&error))).await;
                }
            };
            stream::iter(pods).for_each_concurrent(PODS_AT_ONCE, create).await;
        });
        self.creations.push(creation);
    }
}

/// Repeats an attempt while a quota has no room, and reports why these replicas wait.
async fn within_quota<F>(
    reporter: &mpsc::Sender<Report>,
    waiting: &[Subject],
    attempt: impl Fn() -> F,
) -> Result<(), BackendError>
where
    F: Future<Output = Result<(), BackendError>>,
{
    loop {
        let error = match attempt().await {
            Err(BackendError::OverQuota(error)) => error,
            done => return done,
        };
        for subject in waiting {
            // The send fails only if the driver has ended, so the error does not matter.
            let _ = reporter.send(Report::Waits(*subject, error_chain(&error))).await;
        }
        sleep(QUOTA_PAUSE).await;
    }
}

/// The loss of a replica whose pod could not be created.
fn not_created(error: &BackendError) -> LostRun {
    match error {
        BackendError::Unavailable(_) | BackendError::OverQuota(_) => LostRun::disrupted(error_chain(error)),
        BackendError::Prepare { .. }
        | BackendError::Create { .. }
        | BackendError::Delete { .. }
        | BackendError::DeleteAll { .. } => LostRun::hopeless(format!("{NEVER_STARTED}{}", error_chain(error))),
    }
}
