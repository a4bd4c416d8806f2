//! Observes a cluster for `client doctor`. `checks.rs` judges the observations.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, ResourceQuota};
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt};
use master_client::KubePlace;
use serde::de::DeserializeOwned;

use super::checks::{self, Master, Observed};
use super::rights::Right;
use super::{Cluster, access, rights, rollout, tfjobs};
use crate::ending::error::Error;
use crate::output::Check;

/// The label of a namespace whose value is the Pod Security Standard that the namespace enforces.
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// Makes the checks of `client doctor` for this namespace. `answer` is the version of the master that answers through
/// the port-forward. `docker` is the error if Docker does not answer.
pub(crate) async fn examine(
    place: &KubePlace,
    answer: Result<String, Error>,
    docker: Result<(), String>,
) -> Vec<Check> {
    let mut done = match Cluster::connect(place).await {
        Ok(cluster) => of_cluster(&cluster, answer).await,
        Err(error) => vec![Check::failed("kubeconfig", &error)],
    };
    done.push(checks::docker(docker));
    done
}

async fn of_cluster(cluster: &Cluster, answer: Result<String, Error>) -> Vec<Check> {
    let place = format!("context {}, namespace {}, API {}", cluster.context(), cluster.namespace(), cluster.server);
    let mut done = vec![Check::passed("kubeconfig", place)];
    let version = cluster.call(rights::GET_VERSION, cluster.client().apiserver_version()).await;
    let missing = match (version, access::missing(cluster, rights::TO_USE).await) {
        (Ok(version), Ok(missing)) => {
            done.push(checks::version(&version.major, &version.minor, &version.git_version));
            missing
        }
        // The other calls would fail for the same reason.
        (Err(error), _) | (_, Err(error)) => {
            done.push(Check::failed("Kubernetes", &error));
            return done;
        }
    };
    done.extend(rights::TO_USE.into_iter().map(|right| checks::right(right, missing.contains(&right))));
    done.extend(checks::of_cluster(&observe(cluster, answer).await));
    done
}

async fn observe(cluster: &Cluster, answer: Result<String, Error>) -> Observed {
    let client = cluster.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let (namespace, quotas, secret, rollout, nodes, daemon_sets, left_alone) = tokio::join!(
        cluster.call(rights::GET_NAMESPACE, namespaces.get(cluster.namespace())),
        list(cluster, rights::LIST_QUOTAS, cluster.api::<ResourceQuota>()),
        check_secret(cluster),
        rollout::look(cluster),
        list(cluster, rights::LIST_NODES, Api::<Node>::all(client.clone())),
        list(cluster, rights::LIST_DAEMONSETS, Api::<DaemonSet>::all(client.clone())),
        tfjobs::left_alone(cluster),
    );
    Observed {
        pod_security: namespace.map(|namespace| namespace.labels().get(POD_SECURITY).cloned()),
        quotas,
        secret,
        master: rollout.map(|(deployment, pods)| Master {
            trouble: rollout::judge(&deployment, &pods),
            image: rollout::image(&deployment),
        }),
        answer,
        nodes,
        daemon_sets: daemon_sets.map(|sets| sets.iter().map(ResourceExt::name_any).collect()),
        left_alone,
    }
}

async fn check_secret(cluster: &Cluster) -> Result<(), Error> {
    let secret = cluster.secret().await?;
    cluster.check_keys(&secret.ok_or_else(|| cluster.no_secret())?)
}

async fn list<K>(cluster: &Cluster, right: Right, api: Api<K>) -> Result<Vec<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    Ok(cluster.call(right, api.list(&ListParams::default())).await?.items)
}
