//! Runs pods in Kubernetes. One watch reports the pods of all jobs. A call creates one pod, deletes one pod, or
//! deletes all pods of a job.

mod admission;
mod agent_map;
mod error;
mod manifest;
mod network_policy;
mod observe;
mod quota;
mod room;
mod seen;

use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable};
use job::key::JobKey;
use job::observation::PodState;
use job::wait::Resources;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use launchers::template::{Allowed, Note};
use protocol::dry_run::PodsOfKind;
use protocol::ids::ReplicaId;
use protocol::image::ImageRef;
use protocol::job::JobSpec;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use self::agent_map::AgentMap;
use self::error::{CreateError, ErrorKind};
use self::manifest::{AgentSource, JOB_UID};
use self::seen::{SeenPods, follow};
use super::{BackendError, PodBackend, PodSpec, PodTable, Refusal};
use crate::error_chain::error_chain;
use crate::kube::OwnUses;
use crate::kube::api::{self, ApiFailure, Cluster, MasterPlace, call};
use crate::kube::changes::changes_of;

/// Maximum time for the first list of all pods.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time to wait until the name of another job's pod is free, in addition to that pod's grace.
const NAME_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between attempts to create a pod whose name is still in use, while the watch reports no change.
const NAME_INTERVAL: Duration = Duration::from_secs(5);
/// The grace of a deleted pod whose container was started, if the end of the pod must be confirmed. With a grace of 0,
/// Kubernetes would no longer list the pod while the pod's processes may still run.
const GRACE_SECONDS: u32 = 1;
/// The grace of a deleted pod whose container was never started. With a longer grace, old kubelets take half a minute
/// to remove the pod.
const NO_GRACE_SECONDS: u32 = 0;

/// The job, replica and state of a pod, for fuzzing.
#[doc(hidden)]
pub fn observed(pod: &Pod, before: Option<&PodState>) -> (Option<(JobKey, ReplicaId)>, PodState) {
    (observe::whose(pod), observe::state(pod, before))
}

/// The back end for clusters.
pub struct KubeBackend {
    pods: Api<Pod>,
    policies: Api<NetworkPolicy>,
    quotas: Api<ResourceQuota>,
    master: MasterPlace,
    rules: PodRules,
    agent_map: Option<AgentMap>,
    seen: SeenPods,
    /// Cancelled when the watch has ended. Only a panic can end the watch.
    blind: CancellationToken,
    _watch: AbortOnDropHandle<()>,
}

/// The rules for the pods of all jobs.
#[derive(Debug, Default)]
pub struct PodRules {
    /// Whether jobs may mount folders of the nodes.
    pub host_volumes: HostVolumes,
    /// The image from which the agent is copied into pods.
    pub agent_image: Option<ImageRef>,
    /// The user of pods into which the agent is copied.
    pub default_user: DefaultUser,
    /// What the master's own pod uses. Jobs may not use the same claims and Secrets. If the master's pod is unknown, jobs
    /// may use no claims and no Secrets.
    pub own_uses: OwnUses,
}

/// Whether jobs may mount folders of the nodes. Such a mount can break a pod's isolation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostVolumes {
    /// A job with such a mount is refused.
    #[default]
    Refused,
    /// Any job may use such mounts.
    Allowed,
}

/// The UNIX user of pods into which the agent is copied, if neither the job nor its template names a user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DefaultUser {
    /// User and group 65532.
    #[default]
    Muster,
    /// A user that the cluster chooses, as OpenShift does.
    OfCluster,
}

/// Why the back end cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The pods cannot be listed.
    #[error("list the pods of namespace \"{namespace}\"")]
    List {
        /// The namespace.
        namespace: String,
        /// The cause.
        #[source]
        source: ApiFailure,
    },
    /// The pods can be listed, but the watch did not begin.
    #[error("watch the pods of namespace \"{0}\": the Kubernetes API does not answer")]
    Watch(String),
}

impl KubeBackend {
    /// Begins the watch, and returns when the watch has listed all existing pods.
    pub async fn begin(cluster: &Cluster, rules: PodRules) -> Result<Self, BeginError> {
        let namespace = cluster.namespace().to_owned();
        let pods = cluster.objects();
        // Try a list first, and return its error. The watch would only log a permanent error, and retry for ever.
        call(pods.list(&ListParams::default().limit(1)))
            .await
            .map_err(|source| BeginError::List { namespace: namespace.clone(), source })?;
        let seen = SeenPods::default();
        let (listed, is_listed) = oneshot::channel();
        let following = follow(changes_of(cluster.watched(), api::ours()), seen.clone(), listed);
        let blind = CancellationToken::new();
        let end = blind.clone().drop_guard();
        let watch = AbortOnDropHandle::new(tokio::spawn(async move {
            let _end = end;
            following.await;
        }));
        match timeout(FIRST_LIST_TIMEOUT, is_listed).await {
            Ok(Ok(())) => Ok(Self {
                pods,
                policies: cluster.objects(),
                quotas: cluster.objects(),
                master: cluster.master(),
                rules,
                agent_map: None,
                seen,
                blind,
                _watch: watch,
            }),
            Ok(Err(_)) | Err(_) => Err(BeginError::Watch(namespace)),
        }
    }

    /// Keeps this agent in a ConfigMap. In the pods of jobs with code, Python unpacks the agent from this ConfigMap.
    /// Deletes the agents of other versions that no pod uses. Does nothing if the agent is too large for a ConfigMap.
    pub async fn with_agent_program(self, cluster: &Cluster, agent: &[u8]) -> Self {
        let agent_map = AgentMap::new(cluster.objects(), agent);
        if let Some(map) = &agent_map {
            map.remove_others(&self.pods).await;
        }
        Self { agent_map, ..self }
    }

    /// Builds the pod that this back end creates for a specification.
    fn manifest(&self, spec: &PodSpec) -> Result<Pod, Vec<Note>> {
        let allowed = Allowed { host_volumes: self.rules.host_volumes == HostVolumes::Allowed, root: false };
        manifest::pod(spec, self.agent_source(spec).as_ref(), self.rules.default_user, allowed)
    }

    /// The source of the agent for this pod. A pod with a template does not use the ConfigMap, because the template's
    /// image may lack Python.
    fn agent_source(&self, spec: &PodSpec) -> Option<AgentSource> {
        let map = self.agent_map.as_ref().filter(|_| spec.template.is_none()).and_then(AgentMap::name);
        map.map(AgentSource::ConfigMap).or_else(|| self.rules.agent_image.clone().map(AgentSource::Image))
    }

    /// Creates a pod if it does not exist. Waits while a pod of another job has this name.
    async fn create_once(&self, spec: &PodSpec) -> Result<(), CreateError> {
        if spec.needs_agent() && self.agent_source(spec).is_none() {
            return Err(CreateError::NoAgentImage);
        }
        let name = spec.name().to_string();
        let pod = self.manifest(spec).map_err(CreateError::Template)?;
        let create = async {
            loop {
                let owner = self.seen.owner(&name);
                match call(self.pods.create(&PostParams::default(), &pod)).await {
                    Err(error) if error.says_exists() => {}
                    done => return done.map(drop),
                }
                if self.is_of_job(&name, &spec.job).await? {
                    return Ok(());
                }
                // The watch does not report pods that no master has created, so try again after an interval.
                let _ = timeout(NAME_INTERVAL, self.seen.owner_changed_from(&name, owner.as_ref())).await;
            }
        };
        // If the watch has not reported a pod with this name, use the grace of the new pod.
        let own = u64::from(spec.options.termination_grace_seconds());
        let grace = self.seen.pod(&name).and_then(|pod| pod.grace_seconds).unwrap_or(own);
        match timeout(Duration::from_secs(grace) + NAME_TIMEOUT, create).await {
            Ok(done) => done.map_err(CreateError::Api),
            Err(_) => Err(CreateError::NameTaken),
        }
    }

    /// Whether the pod with this name belongs to the job: it was created before a crash, by a call whose answer was lost,
    /// or so recently that the watch has not reported it.
    async fn is_of_job(&self, name: &str, job: &JobKey) -> Result<bool, ApiFailure> {
        if self.seen.owner(name).is_some_and(|owner| owner == *job) {
            return Ok(true);
        }
        let found = call(self.pods.list(&api::pod_named(name))).await?.items;
        Ok(found.first().and_then(observe::whose).is_some_and(|(owner, _)| owner == *job))
    }

    /// Deletes a pod. `grace_seconds` is the grace if the pod's container was started.
    async fn delete_within(&self, job: &JobKey, replica: ReplicaId, grace_seconds: u32) -> Result<(), BackendError> {
        let pod = protocol::ids::PodName::new(&job.name, replica);
        let name = pod.to_string();
        // An absent pod needs no call, and another job's pod with this name must stay.
        let Some(seen) = self.seen.pod(&name).filter(|seen| seen.job == *job) else { return Ok(()) };
        let grace = if seen.has_begun { grace_seconds } else { NO_GRACE_SECONDS };
        // Another master may create a new pod with this name before this call arrives. The uid protects the new pod.
        let this = Preconditions { uid: seen.uid, resource_version: None };
        let deletion = DeleteParams::default().grace_period(grace).preconditions(this);
        match call(self.pods.delete(&name, &deletion)).await {
            Ok(_) | Err(ApiFailure::Refused { status: 404 | 409, .. }) => Ok(()),
            Err(source) => Err(BackendError::Delete { pod, source: Box::new(source) }),
        }
    }
}

#[async_trait]
impl PodBackend for KubeBackend {
    async fn admit(&self, spec: &JobSpec) -> Result<(), Refusal> {
        self.admission(spec).await.map(drop)
    }

    async fn preview(&self, spec: &JobSpec) -> Result<Vec<PodsOfKind>, Refusal> {
        let kinds = self.admission(spec).await?;
        Ok(kinds.into_iter().map(|(pod, count)| PodsOfKind { count, first: admission::shown(pod) }).collect())
    }

    fn asks(&self, spec: &JobSpec) -> Option<Resources> {
        Some(self.asked(spec))
    }

    /// Creates the job's NetworkPolicy, and the ConfigMap with the agent.
    async fn prepare(&self, job: &JobKey) -> Result<(), BackendError> {
        let policy = network_policy::policy(job, self.master);
        let surround = async || match call(self.policies.create(&PostParams::default(), &policy)).await {
            // The policy was created by an earlier master, or by a call whose answer was lost.
            Err(failure) if failure.says_exists() => Ok(()),
            done => done.map(drop),
        };
        let keep_agent = async || match &self.agent_map {
            Some(map) => map.ensure().await,
            None => Ok(()),
        };
        let attempt = async || tokio::try_join!(surround(), keep_agent()).map(drop);
        let log = |error: &ApiFailure, _| {
            warn!(job = %job.name, error = error_chain(error), "could not prepare the pods; retrying");
        };
        let done = attempt.retry(patience()).when(ApiFailure::is_passing).notify(log).await;
        done.map_err(|source| {
            let kind = ErrorKind::of(&source);
            kind.wrap(BackendError::Prepare { job: job.name.clone(), source: Box::new(source) })
        })
    }

    async fn create(&self, pod: PodSpec) -> Result<(), BackendError> {
        let attempt = || self.create_once(&pod);
        let log = |error: &CreateError, _| {
            warn!(pod = %pod.name(), error = error_chain(error), "could not create the pod; retrying");
        };
        let done = attempt.retry(patience()).when(CreateError::is_passing).notify(log).await;
        done.map_err(|source| {
            let kind = source.kind();
            kind.wrap(BackendError::Create { pod: pod.name(), source: Box::new(source) })
        })
    }

    async fn delete(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        self.delete_within(job, replica, GRACE_SECONDS).await
    }

    async fn delete_unconfirmed(&self, job: &JobKey, replica: ReplicaId) -> Result<(), BackendError> {
        self.delete_within(job, replica, NO_GRACE_SECONDS).await
    }

    async fn delete_all(&self, job: &JobKey) -> Result<(), BackendError> {
        // If the job has no pods, no call is needed.
        if self.seen.table(job).borrow().is_empty() {
            return Ok(());
        }
        let selected = ListParams::default().labels(&format!("{},{JOB_UID}={}", api::ours_selector(), job.uid));
        let grace = if self.seen.any_has_begun(job) { GRACE_SECONDS } else { NO_GRACE_SECONDS };
        match call(self.pods.delete_collection(&DeleteParams::default().grace_period(grace), &selected)).await {
            Ok(_) => Ok(()),
            Err(source) => Err(BackendError::DeleteAll { job: job.name.clone(), source: Box::new(source) }),
        }
    }

    fn watch(&self, job: &JobKey) -> watch::Receiver<PodTable> {
        self.seen.table(job)
    }

    async fn blind(&self) {
        self.blind.cancelled().await;
    }
}

/// Retries for about a minute, plus the time of unanswered calls. An API server that is replaced or restarted usually
/// answers again within that time.
fn patience() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(10))
        .with_max_times(10)
        .with_jitter()
}
