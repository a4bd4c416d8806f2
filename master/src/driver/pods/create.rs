//! Creates a job's pods. If a quota has no room, or if another pod has the name, creation is retried until the start
//! timeout.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use job::observation::{AgentState, LostRun, Wait};
use job::policy::RELEASE_TIMEOUT;
use protocol::failure::NEVER_STARTED;
use protocol::ids::ReplicaId;
use protocol::job::JobSpec;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::replica::Replica;
use super::table::ReplicaTable;
use crate::agents::token::AgentToken;
use crate::backend::{BackendError, PodSpec};
use crate::driver::context::Common;
use crate::driver::reports::{Report, Subject};
use crate::driver::tasks;
use crate::error_chain::error_chain;

/// Maximum number of pods that are created or deleted at the same time.
pub(super) const PODS_AT_ONCE: usize = 32;

/// Pause between two attempts while a quota has no room, or while another pod has the name. The master has no right to
/// watch quotas, and watches no other pods, so no event reports that the reason has passed.
const OBSTACLE_PAUSE: Duration = Duration::from_secs(5);

/// The requests for pods that are in progress.
pub(super) struct Creations {
    common: Common,
    token: AgentToken,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Creations {
    pub(super) fn new(common: Common, token: AgentToken) -> Self {
        Self { common, token, tasks: vec![] }
    }

    /// Requests the pods of these replicas. Skips a pod whose earlier request may still take effect.
    pub(super) fn request(&mut self, table: &mut ReplicaTable, ids: Vec<ReplicaId>, spec: &JobSpec, now: Duration) {
        self.tasks.retain(|creation| !creation.is_finished());
        let is_next =
            |replica: &Replica| replica.tracked.is_to_be_requested(now, RELEASE_TIMEOUT, !self.tasks.is_empty());
        let mut pods = vec![];
        for id in ids {
            if let Some(replica) = table.get_mut(id).filter(|replica| is_next(replica)) {
                replica.request(now);
                let pod = PodSpec::new(self.common.job.clone(), spec, id, self.token.sha256());
                pods.push((replica.subject(id), pod));
            }
        }
        if !pods.is_empty() {
            self.create(pods);
        }
    }

    fn create(&mut self, pods: Vec<(Subject, PodSpec)>) {
        let Common { job, context, reporter, .. } = self.common.clone();
        let backend = Arc::clone(&context.backend);
        let creation = tasks::spawn(&self.common.reporter, async move {
            let all: Vec<Subject> = pods.iter().map(|(subject, _)| *subject).collect();
            if let Err(error) = while_it_waits(&reporter, &all, || backend.prepare(&job)).await {
                warn!(job = %job.name, error = error_chain(&error), "could not create any pod");
                for subject in all {
                    tasks::report(&reporter, subject, AgentState::Failed(not_created(&error))).await;
                }
                return;
            }
            let create = async |(subject, pod): (Subject, PodSpec)| {
                let attempt = || backend.create(pod.clone());
                if let Err(error) = while_it_waits(&reporter, &[subject], attempt).await {
                    tasks::report(&reporter, subject, AgentState::Failed(not_created(&error))).await;
                }
            };
            stream::iter(pods).for_each_concurrent(PODS_AT_ONCE, create).await;
        });
        self.tasks.push(creation);
    }

    /// Cancels the requests, and waits until their tasks have ended.
    pub(super) async fn cancel(&mut self) {
        for creation in self.tasks.drain(..) {
            creation.abort();
            let _ = creation.await;
        }
    }
}

/// Repeats an attempt while there is no room or another pod has the name, and reports why these replicas wait.
async fn while_it_waits<F>(
    reporter: &mpsc::Sender<Report>,
    waiting: &[Subject],
    attempt: impl Fn() -> F,
) -> Result<(), BackendError>
where
    F: Future<Output = Result<(), BackendError>>,
{
    loop {
        let wait = match attempt().await {
            Err(BackendError::OverQuota { lacking, source }) => Wait::Quota { lacking, reason: error_chain(&source) },
            Err(BackendError::NameTaken(source) | BackendError::NoRoom(source)) => Wait::Other(error_chain(&source)),
            done => return done,
        };
        for subject in waiting {
            // The send fails only if the driver has ended, so the error does not matter.
            let _ = reporter.send(Report::Waits(*subject, wait.clone())).await;
        }
        sleep(OBSTACLE_PAUSE).await;
    }
}

/// The loss of a replica whose pod could not be created.
fn not_created(error: &BackendError) -> LostRun {
    match error {
        BackendError::Unavailable(_)
        | BackendError::OverQuota { .. }
        | BackendError::NameTaken(_)
        | BackendError::NoRoom(_) => LostRun::disrupted(error_chain(error)),
        BackendError::Prepare { .. }
        | BackendError::Create { .. }
        | BackendError::Delete { .. }
        | BackendError::DeleteAll { .. } => LostRun::hopeless(format!("{NEVER_STARTED}{}", error_chain(error))),
    }
}
