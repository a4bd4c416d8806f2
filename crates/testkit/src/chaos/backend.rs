//! A back end with faults before and after each change of a pod or of a job's network policy.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use job::key::JobKey;
use job::wait::Resources;
use protocol::dry_run::PodsOfKind;
use protocol::ids::{PodName, ReplicaId};
use protocol::job::JobSpec;
use tokio::sync::watch;

use super::{Chaos, Deed};
use master::backend::{BackendError, Machines, PodBackend, PodSpec, PodTable, Refusal};

/// A back end. Faults can strike before and after calls that change a pod or a network policy.
pub struct ChaosBackend {
    inner: Arc<dyn PodBackend>,
    chaos: Arc<Chaos>,
}

impl ChaosBackend {
    /// Wraps `inner`, so that the faults of `chaos` can strike its calls.
    pub fn new(inner: Arc<dyn PodBackend>, chaos: Arc<Chaos>) -> Self {
        Self { inner, chaos }
    }
}

/// The error of a back end whose own retries have failed.
fn for_now(error: BackendError) -> BackendError {
    BackendError::Unavailable(Box::new(error))
}

#[async_trait]
impl PodBackend for ChaosBackend {
    async fn admit(&self, spec: &JobSpec) -> Result<(), Refusal> {
        self.chaos.gate().await;
        self.inner.admit(spec).await
    }

    async fn preview(&self, spec: &JobSpec) -> Result<Vec<PodsOfKind>, Refusal> {
        self.chaos.gate().await;
        self.inner.preview(spec).await
    }

    fn asks(&self, spec: &JobSpec) -> Option<Resources> {
        self.inner.asks(spec)
    }

    async fn prepare(&self, job: &JobKey) -> Result<(), BackendError> {
        let error = |struck| for_now(BackendError::Prepare { job: job.name.clone(), source: Box::new(struck) });
        self.chaos.around(Some(Deed::Prepare), self.inner.prepare(job), error).await
    }

    async fn create(&self, pod: PodSpec) -> Result<(), BackendError> {
        let name = pod.name();
        let error = |struck| for_now(BackendError::Create { pod: name.clone(), source: Box::new(struck) });
        self.chaos.around(Some(Deed::CreatePod), self.inner.create(pod), error).await
    }

    async fn delete(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        let pod = PodName::new(&job.name, replica);
        let error = |struck| BackendError::Delete { pod: pod.clone(), source: Box::new(struck) };
        self.chaos.around(Some(Deed::DeletePod), self.inner.delete(job, replica), error).await
    }

    async fn delete_unconfirmed(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        let pod = PodName::new(&job.name, replica);
        let error = |struck| BackendError::Delete { pod: pod.clone(), source: Box::new(struck) };
        self.chaos.around(Some(Deed::DeletePod), self.inner.delete_unconfirmed(job, replica), error).await
    }

    async fn delete_all(&self, job: &JobKey) -> Result<(), BackendError> {
        let error = |struck| BackendError::DeleteAll { job: job.name.clone(), source: Box::new(struck) };
        self.chaos.around(Some(Deed::DeleteAll), self.inner.delete_all(job), error).await
    }

    fn folder(&self, job: &JobKey, spec: &JobSpec) -> Option<PathBuf> {
        self.inner.folder(job, spec)
    }

    async fn written_files(&self, job: &JobKey) -> u64 {
        self.inner.written_files(job).await
    }

    async fn forget(&self, job: &JobKey) {
        self.chaos.gate().await;
        self.inner.forget(job).await;
    }

    /// While the master is frozen or dead, the watch reports no changes.
    fn watch(&self, job: &JobKey) -> watch::Receiver<PodTable> {
        let mut pods = self.inner.watch(job);
        let (sender, seen) = watch::channel(pods.borrow_and_update().clone());
        let chaos = Arc::clone(&self.chaos);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    changed = pods.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
                chaos.gate().await;
                sender.send_replace(pods.borrow_and_update().clone());
            }
        });
        seen
    }

    /// No fault strikes the messages of machines.
    fn machines(&self) -> Option<&dyn Machines> {
        self.inner.machines()
    }

    async fn blind(&self) {
        self.inner.blind().await;
    }

    async fn shutdown(&self) {
        self.inner.shutdown().await;
    }
}
