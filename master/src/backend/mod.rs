//! Where pods live. The verbs are declarative, so that a retry is free; readiness is not a back end's business, for a
//! pod is ready when its agent answers.

pub mod kube;
pub mod process;

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use protocol::error::ErrorCode;
use protocol::ids::{JobName, PodName, ReplicaId};
use protocol::image::ImageRef;
use protocol::job::JobSpec;
use protocol::pod::PodOptions;
use tokio::sync::watch;

use crate::job::key::JobKey;
use crate::job::observation::PodState;

/// One pod to be. Nothing in it depends on the other pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSpec {
    /// The job it belongs to.
    pub job: JobKey,
    /// Which replica it carries.
    pub replica: ReplicaId,
    /// The image, where pods are containers.
    pub image: Option<ImageRef>,
    /// The folder that holds exec.py, where pods are processes.
    pub work_dir: Option<PathBuf>,
    /// Arguments for exec.py.
    pub args: Vec<String>,
    /// What it is given, where pods are Kubernetes'.
    pub options: PodOptions,
    /// The SHA-256, in hex, of the token that its agent shall ask for.
    pub agent_token_sha256: String,
}

impl PodSpec {
    /// The pod of one replica of a job, with what its spec asks for.
    pub fn new(job: JobKey, spec: &JobSpec, replica: ReplicaId, agent_token_sha256: String) -> Self {
        Self {
            job,
            replica,
            image: spec.image.clone(),
            work_dir: spec.work_dir.clone(),
            args: spec.args.clone(),
            options: spec.pod.clone(),
            agent_token_sha256,
        }
    }

    /// Its name.
    pub fn name(&self) -> PodName {
        PodName::new(&self.job.name, self.replica)
    }
}

/// Every pod of one job that the back end knows, and how it stands.
pub type PodTable = BTreeMap<ReplicaId, PodState>;

/// Why a back end will not serve a spec, found before anything was created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub sentence: String,
}

/// Why a back end did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The same, and only for now: what stands behind the back end does not answer, or not well.
    #[error(transparent)]
    Unavailable(Box<BackendError>),
    /// The same, and only until a quota has room: others use what is there.
    #[error(transparent)]
    OverQuota(Box<BackendError>),
    /// What the pods of a job need around them cannot be made.
    #[error("make the network policy of job \"{job}\"")]
    Prepare {
        /// Whose.
        job: JobName,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pod cannot be created as it is.
    #[error("create pod \"{pod}\"")]
    Create {
        /// Which.
        pod: PodName,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A pod cannot be deleted now.
    #[error("delete pod \"{pod}\"")]
    Delete {
        /// Which.
        pod: PodName,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pods of a job cannot be deleted now.
    #[error("delete the pods of job \"{job}\"")]
    DeleteAll {
        /// Whose.
        job: JobName,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Where pods live.
#[async_trait]
pub trait PodBackend: Send + Sync {
    /// Says, before anything is created, whether this back end can serve the spec.
    ///
    /// # Errors
    /// A [`Refusal`] that names the field and says what to do.
    async fn admit(&self, spec: &JobSpec) -> Result<(), Refusal>;

    /// Makes what must be there before the first pod of a job is; what is there already is left alone.
    ///
    /// # Errors
    /// [`BackendError::Prepare`].
    async fn prepare(&self, job: &JobKey) -> Result<(), BackendError>;

    /// Creates a pod; one that is there already, in whatever state, is left alone and counts as created.
    ///
    /// # Errors
    /// [`BackendError::Create`], [`BackendError::OverQuota`].
    async fn create(&self, pod: PodSpec) -> Result<(), BackendError>;

    /// Deletes a pod, without time for what runs in it to end; an absent one succeeds. Returns when the end has begun; the
    /// watch says when the pod is gone.
    ///
    /// # Errors
    /// [`BackendError::Delete`].
    async fn delete(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError>;

    /// Deletes every pod of a job, in the same way.
    ///
    /// # Errors
    /// [`BackendError::DeleteAll`].
    async fn delete_all(&self, job: &JobKey) -> Result<(), BackendError>;

    /// The pods of a job as they are now, and then as they change. States in between may be skipped, the last never;
    /// a pod that has ended stays listed, with its reason, until it is deleted.
    fn watch(&self, job: &JobKey) -> watch::Receiver<PodTable>;

    /// Returns when nothing will be told of pods any more, by a failure of the back end itself: a master that went on
    /// would wait for ever for what it cannot see.
    async fn blind(&self) {
        std::future::pending().await
    }

    /// Ends every pod that cannot outlive this master, and returns when they are gone.
    async fn shutdown(&self);
}
