//! The trait of the back ends, which run pods, and the table of pods that they watch. Their methods are declarative, so a
//! retry is safe. A back end does not judge readiness: a pod is ready when its agent answers.

pub mod joined;
pub mod kube;
pub mod process;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use job::key::JobKey;
use job::observation::{Incarnation, Pod};
use job::wait::Resources;
use protocol::dry_run::PodsOfKind;
use protocol::error::ErrorCode;
use protocol::group::Template;
use protocol::ids::{JobName, PodName, ReplicaId};
use protocol::image::ImageRef;
use protocol::job::JobSpec;
use protocol::join::JoinRequest;
use protocol::pod::PodOptions;
use tokio::sync::watch;

/// Maximum time to count the files that a deletion removes.
pub const COUNTING_LIMIT: Duration = Duration::from_secs(2);

/// The specification of a pod, which depends on no other pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSpec {
    /// The job of the pod.
    pub job: JobKey,
    /// The replica that runs in the pod.
    pub replica: ReplicaId,
    /// The image, if pods are containers.
    pub image: Option<ImageRef>,
    /// The folder that contains the script, if pods are processes.
    pub work_dir: Option<PathBuf>,
    /// Whether the job brings its code. The agents receive this code after their start.
    pub brings_code: bool,
    /// The program that the agent starts, and its arguments.
    pub command: Vec<String>,
    /// The number of processes of the program that the agent starts.
    pub processes: u32,
    /// The pod template of the replica's group. In Kubernetes, the agent is copied into the pod. A process uses only
    /// the template's variables.
    pub template: Option<Template>,
    /// Labels of the launcher whose file describes the job. Users find the pod by these labels.
    pub labels: BTreeMap<String, String>,
    /// A second path at which pods in Kubernetes mount the folder with the code.
    pub second_code_folder: Option<&'static str>,
    /// The options of pods in Kubernetes.
    pub options: PodOptions,
    /// The SHA-256, in hex, of the token that the agent requires from its callers.
    pub agent_token_sha256: String,
}

impl PodSpec {
    /// The pod of one replica, according to the job's spec.
    pub fn new(job: JobKey, spec: &JobSpec, replica: ReplicaId, agent_token_sha256: String) -> Self {
        Self {
            job,
            replica,
            image: spec.image.clone(),
            work_dir: spec.work_dir.clone(),
            brings_code: spec.code.is_some(),
            command: spec.command_of(replica),
            processes: spec.processes_of(replica),
            template: spec.group_of(replica).and_then(|group| group.template.clone()),
            labels: spec.labels_of(replica),
            second_code_folder: spec.second_code_folder(),
            options: spec.pod_of(replica),
            agent_token_sha256,
        }
    }

    /// Whether the agent must be copied into the pod, because the pod's image contains no agent.
    pub fn needs_agent(&self) -> bool {
        self.brings_code || self.template.is_some()
    }

    /// The pod's name.
    pub fn name(&self) -> PodName {
        PodName::new(&self.job.name, self.replica)
    }
}

/// The pods of one job, by replica.
pub type PodTable = BTreeMap<ReplicaId, Pod>;

/// Returns an incarnation that is unique in this process, for back ends whose pods have no unique id.
pub fn new_incarnation() -> Incarnation {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string().into()
}

/// Why a back end refuses a spec, before it has created anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    /// The code for programs.
    pub code: ErrorCode,
    /// The sentence for people.
    pub sentence: String,
}

/// Why a request to a back end failed.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A temporary failure, for example of the connection. A retry may succeed.
    #[error(transparent)]
    Unavailable(Box<BackendError>),
    /// A temporary failure: other pods use the quota.
    #[error("a quota has no room")]
    OverQuota {
        /// The resources of which the quota has too little left.
        lacking: Resources,
        /// The failed request.
        source: Box<BackendError>,
    },
    /// A temporary failure: another pod has the name.
    #[error(transparent)]
    NameTaken(Box<BackendError>),
    /// A temporary failure: this machine has too little disk space or memory, or too few processes or open files.
    #[error(transparent)]
    NoRoom(Box<BackendError>),
    /// The objects that a job's pods need cannot be created.
    #[error("prepare the pods of job \"{job}\"")]
    Prepare {
        /// The job.
        job: JobName,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pod cannot be created as it is specified.
    #[error("create pod \"{pod}\"")]
    Create {
        /// The pod.
        pod: PodName,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A pod cannot be deleted now.
    #[error("delete pod \"{pod}\"")]
    Delete {
        /// The pod.
        pod: PodName,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pods of a job cannot be deleted now.
    #[error("delete the pods of job \"{job}\"")]
    DeleteAll {
        /// The job.
        job: JobName,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The places of a back end for machines whose agents join by themselves.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Handles the message of a machine. The message's `lease_seconds` must be the job's lease. Returns the machine's
    /// place, or `None` if the machine waits for a place, must leave its place, or has left.
    ///
    /// # Errors
    /// Fails if a change cannot be written to disk. The table of pods then does not show this change.
    async fn join(&self, job: &JobKey, message: JoinRequest) -> io::Result<Option<ReplicaId>>;

    /// A machine of this job that can test whether `address` is reachable: the first machine that has another address
    /// and has not left.
    fn neighbour(&self, job: &JobKey, address: SocketAddr) -> Option<(ReplicaId, SocketAddr)>;
}

/// A back end: it creates, deletes and watches pods.
#[async_trait]
pub trait PodBackend: Send + Sync {
    /// Checks whether this back end can serve the spec, before anything is created.
    ///
    /// # Errors
    /// A [`Refusal`] that names the field and the fix.
    async fn admit(&self, spec: &JobSpec) -> Result<(), Refusal>;

    /// Like [`PodBackend::admit`]. Also returns the pods that this back end would create, if they are Kubernetes pods.
    async fn preview(&self, spec: &JobSpec) -> Result<Vec<PodsOfKind>, Refusal> {
        self.admit(spec).await?;
        Ok(vec![])
    }

    /// The resources that a job's pods ask for, by their names in pods. `None` if pods need no room, because jobs then
    /// do not compete.
    fn asks(&self, _spec: &JobSpec) -> Option<Resources> {
        None
    }

    /// Creates the objects that a job needs before its first pod, if any. A repeated call does not change existing
    /// objects.
    ///
    /// # Errors
    /// [`BackendError::Prepare`], [`BackendError::Unavailable`], [`BackendError::OverQuota`].
    async fn prepare(&self, _job: &JobKey) -> Result<(), BackendError> {
        Ok(())
    }

    /// Creates a pod. If the pod exists, in any state, succeeds and changes nothing.
    ///
    /// # Errors
    /// [`BackendError::Create`], [`BackendError::Unavailable`], [`BackendError::OverQuota`],
    /// [`BackendError::NameTaken`], [`BackendError::NoRoom`].
    async fn create(&self, pod: PodSpec) -> Result<(), BackendError>;

    /// Deletes a pod with the shortest possible grace for its processes. Deleting an absent pod succeeds. Returns when
    /// the deletion has begun. The watch reports when the pod is gone.
    ///
    /// # Errors
    /// [`BackendError::Delete`].
    async fn delete(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError>;

    /// Like [`PodBackend::delete`], for a pod in which exec.py is known to be dead. The back end may delete the pod
    /// before the pod's node confirms the end.
    ///
    /// # Errors
    /// [`BackendError::Delete`].
    async fn delete_unconfirmed(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        self.delete(job, replica).await
    }

    /// Deletes every pod of a job, as [`PodBackend::delete`] deletes one pod.
    ///
    /// # Errors
    /// [`BackendError::DeleteAll`], [`BackendError::Delete`].
    async fn delete_all(&self, job: &JobKey) -> Result<(), BackendError> {
        let there: Vec<ReplicaId> = self.watch(job).borrow().keys().copied().collect();
        for replica in there {
            self.delete(job, replica).await?;
        }
        Ok(())
    }

    /// The pods of a job now, and then each change. The receiver may miss intermediate states, but it always gets the
    /// newest state. An ended pod stays listed, with its reason, until it is deleted. A pod keeps its incarnation. A
    /// later pod of the same replica has another incarnation.
    fn watch(&self, job: &JobKey) -> watch::Receiver<PodTable>;

    /// The folder of this host in which the job's scripts run, if pods are processes. It does not change.
    fn folder(&self, _job: &JobKey, _spec: &JobSpec) -> Option<PathBuf> {
        None
    }

    /// The number of files that the job's scripts have written, and that [`PodBackend::forget`] removes. Too small if the
    /// count takes longer than [`COUNTING_LIMIT`].
    async fn written_files(&self, _job: &JobKey) -> u64 {
        0
    }

    /// Removes what the back end keeps as long as the job's record, such as a copy of the job's folder. The job has no
    /// pod any more, and its record is deleted next.
    async fn forget(&self, _job: &JobKey) {}

    /// The jobs of which the back end keeps something that [`PodBackend::forget`] removes, also jobs without a record.
    async fn kept(&self) -> Vec<JobKey> {
        vec![]
    }

    /// The places for machines whose agents join by themselves, if this back end has any.
    fn machines(&self) -> Option<&dyn Machines> {
        None
    }

    /// Resolves when the back end has failed and no longer reports pods. The master must then end. Otherwise the
    /// master would wait for ever for changes of pods.
    async fn blind(&self) {
        std::future::pending().await
    }

    /// Ends every pod that cannot outlive this master, and returns when these pods have ended.
    async fn shutdown(&self) {}
}
