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
use tokio::time::sleep;
use tracing::warn;

use super::Pods;
use super::replica::Replica;
use super::table::ReplicaTable;
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

impl Pods {
    /// Requests the pods of these replicas. Skips a pod whose earlier request may still take effect.
    pub(in crate::driver) fn request(
        &mut self,
        replicas: &mut ReplicaTable,
        ids: &[ReplicaId],
        spec: &Arc<JobSpec>,
        now: Duration,
    ) {
        self.creations.retain(|creation| !creation.is_finished());
        let is_in_progress = !self.creations.is_empty();
        let request = |id: &ReplicaId| {
            let is_next = |it: &&mut Replica| it.tracked.is_to_be_requested(now, RELEASE_TIMEOUT, is_in_progress);
            let replica = replicas.get_mut(*id).filter(is_next)?;
            replica.change(|tracked| tracked.request(now));
            Some(replica.subject(*id))
        };
        let requested: Vec<Subject> = ids.iter().filter_map(request).collect();
        if requested.is_empty() {
            return;
        }
        let (common, spec, token) = (self.common.clone(), Arc::clone(spec), self.token.sha256());
        self.creations.push(tasks::spawn(&self.common.reporter, async move {
            let backend = &common.context.backend;
            if let Err(error) = while_it_waits(&common, &requested, || backend.prepare(&common.job)).await {
                warn!(job = %common.job.name, error = error_chain(&error), "could not create any pod");
                for subject in requested {
                    common.report(Report::Agent(subject, not_created(&error))).await;
                }
                return;
            }
            let create = async |subject: Subject| {
                // A spec may be long, so only pods that are created now have a copy of its parts.
                let pod = PodSpec::new(common.job.clone(), &spec, subject.id, token.clone());
                if let Err(error) = while_it_waits(&common, &[subject], || backend.create(pod.clone())).await {
                    common.report(Report::Agent(subject, not_created(&error))).await;
                }
            };
            stream::iter(requested).for_each_concurrent(PODS_AT_ONCE, create).await;
        }));
    }

    /// Cancels the requests for pods, and waits until their tasks have ended. A requested pod may still appear later.
    pub(in crate::driver) async fn cancel_creations(&mut self, replicas: &mut ReplicaTable) {
        for creation in self.creations.drain(..) {
            creation.abort();
            let _ = creation.await;
        }
        replicas.iter_mut().for_each(|(_, replica)| replica.tracked.give_up_request());
    }
}

/// Repeats an attempt while there is no room or another pod has the name, and reports why these replicas wait.
async fn while_it_waits<F>(common: &Common, waiting: &[Subject], attempt: impl Fn() -> F) -> Result<(), BackendError>
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
            common.report(Report::Waits(*subject, wait.clone())).await;
        }
        sleep(OBSTACLE_PAUSE).await;
    }
}

/// The state of the agent of a replica whose pod could not be created.
fn not_created(error: &BackendError) -> AgentState {
    AgentState::Failed(match error {
        BackendError::Unavailable(_)
        | BackendError::OverQuota { .. }
        | BackendError::NameTaken(_)
        | BackendError::NoRoom(_) => LostRun::disrupted(error_chain(error)),
        BackendError::Prepare { .. }
        | BackendError::Create { .. }
        | BackendError::Delete { .. }
        | BackendError::DeleteAll { .. } => LostRun::hopeless(format!("{NEVER_STARTED}{}", error_chain(error))),
    })
}
