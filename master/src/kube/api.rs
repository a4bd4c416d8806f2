//! The Kubernetes API for the back end and the store: connection, deadlines, and errors in the API's own words.

use std::time::{Duration, Instant};

use anyhow::Context;
use hyper::{Request, header};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::client::Body;
use kube::config::{Config, KubeConfigOptions};
use kube::core::Status;
use kube::{Api, Client, Resource};
use protocol::ids::UnixMillis;
use protocol::pod::OPENSHIFT_GROUP;
use protocol::tfjob::{TFJOB_GROUP, TFJOB_KIND};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower::{BoxError, service_fn};
use tracing::warn;

use super::clock::Clock;
use super::own_pod::OwnPod;

/// Maximum time of one call, including kube's own retries after 429, 503 and 504.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum calls at a time. Each call takes a connection of its own, and the API slows down clients with many calls.
const CALLS_AT_ONCE: usize = 64;
/// Maximum time until the API begins to answer a watch, which ends after 20 s. After a watch has begun, kube itself
/// notices if the watch is dead.
const WATCH_ANSWER_TIMEOUT: Duration = Duration::from_secs(25);

/// A turn for each call in progress.
static TURNS: Semaphore = Semaphore::const_new(CALLS_AT_ONCE);

/// The value of [`MANAGED_BY`] on every object that a master has created.
pub(crate) const MUSTER: &str = launchers::template::MUSTER;
/// The recommended Kubernetes label for the creator of an object. The watches select objects by this label.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The recommended label for the application of an object.
pub(crate) const APP_NAME: &str = "app.kubernetes.io/name";
/// The recommended label for the instance of an application: the job's name.
pub(crate) const APP_INSTANCE: &str = "app.kubernetes.io/instance";
/// The recommended label for the component: a pod's role, `job` for the record, `code` for a copy of code, `agent` for the
/// packed agent, or `network` for the network policy.
pub(crate) const APP_COMPONENT: &str = "app.kubernetes.io/component";
/// The label with the job's name.
pub(crate) const JOB: &str = "muster/job";

/// The name of TFJobs in the API.
const TFJOBS: &str = "tfjobs";

/// The connection to one namespace of a cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// The client for watches, without kube's own retries. kube doubles its pause before each retry, and a watch has no
    /// deadline that would end the retries.
    watching: Client,
    namespace: String,
    /// The URL of the API.
    url: String,
    master: MasterPlace,
    clock: Clock,
}

/// Where this master runs, relative to the pods of its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MasterPlace {
    /// In a pod of the jobs' namespace.
    PodBesideJobs,
    /// Outside the cluster, or in another namespace.
    Elsewhere,
}

/// Why a call to the API failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiFailure {
    /// The API refused the call, with this message.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The reason for programs, such as `AlreadyExists`.
        reason: String,
        /// The message for people.
        message: String,
    },
    /// The API cannot be reached, or its answer cannot be read.
    #[error("the Kubernetes API cannot be reached")]
    Unreachable(#[source] Box<kube::Error>),
    /// The API did not answer in time.
    #[error("the Kubernetes API did not answer within {} s", CALL_TIMEOUT.as_secs())]
    Silent,
}

impl ApiFailure {
    /// Whether the same call may succeed later. The failed call may have taken effect nevertheless.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            // A conflict passes unless the name is in use. For example, another request has just changed a quota.
            Self::Refused { status: 409, .. } => !self.says_exists(),
            Self::Refused { status, .. } => *status == 429 || *status >= 500,
            Self::Unreachable(_) | Self::Silent => true,
        }
    }

    /// Whether the call failed because a quota has no room now. The text of the message comes from
    /// `k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go`.
    pub(crate) fn says_over_quota(&self) -> bool {
        match self {
            Self::Refused { status, message, .. } => *status == 403 && message.contains("exceeded quota"),
            Self::Unreachable(_) | Self::Silent => false,
        }
    }

    /// Whether the call failed because an object with the same name exists.
    pub(crate) fn says_exists(&self) -> bool {
        match self {
            Self::Refused { status, reason, .. } => *status == 409 && reason == "AlreadyExists",
            Self::Unreachable(_) | Self::Silent => false,
        }
    }
}

impl Cluster {
    /// Connects to the cluster that KUBECONFIG names, or to the cluster in which this program runs.
    ///
    /// # Errors
    /// Fails if no cluster is found, or if the client cannot be prepared.
    pub async fn connect(namespace: Option<String>) -> anyhow::Result<Self> {
        let config = Config::infer()
            .await
            .context("find a Kubernetes cluster: set KUBECONFIG, or run the master in a pod with a service account")?;
        // An inferred configuration does not show its origin. kube uses the pod's service account only if there is no
        // kubeconfig.
        let is_in_pod = Config::from_kubeconfig(&KubeConfigOptions::default()).await.is_err();
        let (own, url) = (config.default_namespace.clone(), config.cluster_url.to_string());
        let namespace = namespace.unwrap_or_else(|| own.clone());
        let mut to_watch = config.clone();
        to_watch.default_retry = false;
        let client = |config| Client::try_from(config).context("prepare a client of the Kubernetes API");
        let (client, watching) = (client(config)?, with_patience(client(to_watch)?));
        let master = if is_in_pod && namespace == own { MasterPlace::PodBesideJobs } else { MasterPlace::Elsewhere };
        let clock = ask_clock(&client).await;
        Ok(Self { client, watching, namespace, url, master, clock })
    }

    /// A connection through this client, for a master outside the cluster.
    pub fn new(client: Client, namespace: String) -> Self {
        let (watching, url, clock) = (with_patience(client.clone()), String::new(), Clock::default());
        Self { client, watching, namespace, url, master: MasterPlace::Elsewhere, clock }
    }

    /// The name of the folder for this namespace's files. Each namespace of each cluster has a different folder.
    pub(crate) fn folder(&self) -> String {
        let digest = Sha256::digest(format!("{} {}", self.url, self.namespace));
        format!("kubernetes-{}", hex::encode(&digest[..8]))
    }

    /// The time by the API server's clock.
    pub(crate) fn now(&self) -> UnixMillis {
        self.clock.at(Instant::now())
    }

    pub(crate) fn master(&self) -> MasterPlace {
        self.master
    }

    /// Reads the pod in which this master runs. `name` is the name of the pod.
    ///
    /// # Errors
    /// Fails if the call fails. The master then knows neither its image nor the claims with its state.
    pub(crate) async fn own_pod(&self, name: Option<&str>) -> Result<OwnPod, ApiFailure> {
        if self.master == MasterPlace::Elsewhere {
            return Ok(OwnPod::default());
        }
        let found = match name {
            None => vec![],
            Some(name) => call(self.objects::<Pod>().list(&pod_named(name))).await?.items,
        };
        if found.is_empty() {
            warn!(
                name,
                "HOSTNAME is not set, or no pod has this name: the image, the claims and the Secrets of the master's pod are \
                 unknown, so jobs may use no claims and no Secrets"
            );
        }
        Ok(OwnPod::of(found.first()))
    }

    /// The name of the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The objects of one kind.
    pub(crate) fn objects<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The TFJobs of the namespace.
    pub(crate) fn tfjobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &tfjobs())
    }

    /// The TFJobs of the namespace, for a watch.
    pub(crate) fn watched_tfjobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.watching.clone(), &self.namespace, &tfjobs())
    }

    /// Whether the cluster's definition of TFJobs is that of `manifests/tfjobs.yaml`, and not Kubeflow's. Only Muster's
    /// definition has the category `muster`. Every account may read the categories of a resource, so the master needs
    /// no further right.
    pub(crate) async fn has_our_tfjobs(&self) -> Result<bool, ApiFailure> {
        match call(self.client.list_api_group_resources(&tfjobs().api_version)).await {
            Ok(group) => Ok(group.resources.into_iter().any(|resource| {
                resource.name == TFJOBS && resource.categories.into_iter().flatten().any(|category| category == MUSTER)
            })),
            Err(ApiFailure::Refused { status: 404, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Whether the cluster chooses the user of a pod that names no user, as OpenShift does. Usually every account may
    /// list the groups of the API. If the master's account may not, returns false.
    ///
    /// # Errors
    /// Fails if the call fails for another reason.
    pub async fn gives_users(&self) -> Result<bool, ApiFailure> {
        match call(self.client.list_api_groups()).await {
            Ok(all) => Ok(all.groups.into_iter().any(|group| group.name == OPENSHIFT_GROUP)),
            Err(ApiFailure::Refused { status: 403, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// The objects of one kind, for a watch.
    pub(crate) fn watched<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.watching.clone(), &self.namespace)
    }
}

fn tfjobs() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(TFJOB_GROUP, "v1", TFJOB_KIND), TFJOBS)
}

/// The selector of all objects that a master has created.
pub(crate) fn ours_selector() -> String {
    format!("{MANAGED_BY}={MUSTER}")
}

/// The selector of the objects of this component that a master has created.
pub(crate) fn selector_of(component: &str) -> String {
    format!("{},{APP_COMPONENT}={component}", ours_selector())
}

/// Limits a watch to the objects that a master has created.
pub(crate) fn ours() -> kube::runtime::watcher::Config {
    kube::runtime::watcher::Config::default().labels(&ours_selector())
}

/// Selects the pod with this name. The master already has the right to list pods, and a get would need one more right.
pub(crate) fn pod_named(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}

/// A client whose requests fail if the API does not begin to answer. The answer itself may take as long as a watch.
fn with_patience(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let answered = move |request| {
        let client = client.clone();
        async move { Ok::<_, BoxError>(timeout(WATCH_ANSWER_TIMEOUT, client.send(request)).await??) }
    };
    Client::new(service_fn(answered), namespace)
}

/// Makes one call with a deadline, which begins at the call's turn.
pub(crate) async fn call<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiFailure> {
    let _turn = TURNS.acquire().await.expect("the semaphore is never closed");
    match timeout(CALL_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => {
            let Status { code, reason, message, .. } = *status;
            Err(ApiFailure::Refused { status: code, reason, message })
        }
        Ok(Err(error)) => Err(ApiFailure::Unreachable(Box::new(error))),
        Err(_) => Err(ApiFailure::Silent),
    }
}

/// Asks the API server for its time.
async fn ask_clock(client: &Client) -> Clock {
    let request = Request::get("/version").body(Body::empty()).expect("a path makes a request");
    let answer = call(client.send(request)).await.ok();
    let date = answer.as_ref().and_then(|answer| answer.headers().get(header::DATE)?.to_str().ok());
    Clock::of_answer(date, Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_master_in_the_namespace_of_its_jobs_must_be_able_to_read_its_own_pod() {
        // Nothing listens at this port.
        let nowhere = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let outside = Cluster::new(nowhere, "training".to_owned());
        assert_eq!(outside.own_pod(Some("muster-0")).await.unwrap(), OwnPod::default());
        let inside = Cluster { master: MasterPlace::PodBesideJobs, ..outside };
        let failure = inside.own_pod(Some("muster-0")).await.unwrap_err();
        assert!(matches!(failure, ApiFailure::Unreachable(_)), "{failure:?}");
    }
}
