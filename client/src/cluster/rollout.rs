//! Waits until the installed master serves.

use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt, select};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use kube::runtime::{WatchStreamExt, watcher};

use super::pods::{self, Trouble};
use super::{Cluster, MASTER_PODS, MUSTER, PART_OF, no_master, rights};
use crate::ending::error::Error;
use crate::output::{Notes, spelled};

/// Maximum time of a rollout: the end of the old master, the pull of the image, and the start of the new master.
const LIMIT: Duration = Duration::from_secs(300);

/// Waits until a master with the Deployment's present image and arguments serves. Fails at once if it cannot start.
pub(super) async fn until_done(cluster: &Cluster, notes: &Notes) -> Result<(), Error> {
    let deployments = watcher(cluster.api::<Deployment>(), ours()).default_backoff().map(drop).boxed();
    let mut changes = select(deployments, pod_changes(cluster, MASTER_PODS));
    let mut newest = String::new();
    let work = async {
        loop {
            let (deployment, pods) = look(cluster).await?;
            match judge(&deployment, &pods) {
                None => return Ok(()),
                Some(Trouble::Waits(state)) => newest = state,
                Some(Trouble::Image(reason)) => return Err(no_image(&image(&deployment), &reason)),
                Some(Trouble::Stuck(reason)) => {
                    let hint = "kubectl describe pods -l app.kubernetes.io/component=master shows why";
                    return Err(Error::master(format!("the master does not start: {reason}")).hint(hint));
                }
            }
            notes.show_step(&format!("waiting for the master: {newest}"));
            changes.next().await;
        }
    };
    let outcome = tokio::time::timeout(LIMIT, work).await;
    notes.end_progress();
    let late = || Error::master(format!("the master does not serve after {}: {newest}", spelled(LIMIT)));
    outcome.unwrap_or_else(|_| Err(late()))
}

/// The error if the node cannot get the master's image.
fn no_image(image: &str, reason: &str) -> Error {
    let hint = "run `make images`, which builds the image and loads it into a local cluster; or push the image and \
        name it with --image";
    Error::input(format!("the node cannot get the master's image {image}: {reason}")).hint(hint)
}

/// The Deployment and the master's pods.
pub(super) async fn look(cluster: &Cluster) -> Result<(Deployment, Vec<Pod>), Error> {
    let deployment = cluster.call(rights::GET_DEPLOYMENTS, cluster.api::<Deployment>().get_opt(MUSTER)).await?;
    let deployment = deployment.ok_or_else(|| no_master(&cluster.place))?;
    Ok((deployment, cluster.master_pods().await?))
}

/// A stream that yields an item after changes of the pods with these labels. One item may stand for several changes.
/// The stream begins with at least one item.
pub(super) fn pod_changes(cluster: &Cluster, labels: &str) -> BoxStream<'static, ()> {
    watcher(cluster.api::<Pod>(), watcher::Config::default().labels(labels)).default_backoff().map(drop).boxed()
}

fn ours() -> watcher::Config {
    watcher::Config::default().labels(&format!("{PART_OF}={MUSTER}"))
}

/// Why the newest master of this Deployment does not serve. `None` if it serves.
pub(super) fn judge(deployment: &Deployment, pods: &[Pod]) -> Option<Trouble> {
    let status = deployment.status.clone().unwrap_or_default();
    if status.observed_generation < deployment.metadata.generation {
        return Some(Trouble::Waits("the cluster has not noticed the change yet".to_owned()));
    }
    if let Some(message) = replica_failure(deployment) {
        return Some(Trouble::Stuck(message));
    }
    let wanted = container(deployment);
    let current: Vec<Pod> = pods.iter().filter(|pod| runs(pod, wanted)).cloned().collect();
    let is_updated = status.updated_replicas == status.replicas && status.available_replicas.unwrap_or(0) > 0;
    match pods::newest_kept(&current) {
        Some(pod) if is_updated && pods::is_ready(pod) => None,
        Some(pod) => Some(match pods::trouble(pod) {
            image @ Trouble::Image(_) => image,
            Trouble::Stuck(_) => Trouble::Stuck(pods::state(pod)),
            Trouble::Waits(_) => Trouble::Waits(pods::state(pod)),
        }),
        None if pods.is_empty() => Some(Trouble::Waits("the pod is not created yet".to_owned())),
        None => Some(Trouble::Waits("the old master is shutting down".to_owned())),
    }
}

/// The image of the Deployment's master.
pub(super) fn image(deployment: &Deployment) -> String {
    container(deployment).and_then(|container| container.image.clone()).unwrap_or_default()
}

/// Why the cluster refuses to create the pod, for example because of a quota.
fn replica_failure(deployment: &Deployment) -> Option<String> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions.iter().find(|one| one.type_ == "ReplicaFailure" && one.status == "True")?;
    Some(failure.message.clone().unwrap_or_default())
}

fn container(deployment: &Deployment) -> Option<&Container> {
    deployment.spec.as_ref()?.template.spec.as_ref()?.containers.first()
}

/// Whether the pod was created from this container of the Deployment. A pod of the previous Deployment may still exist.
fn runs(pod: &Pod, wanted: Option<&Container>) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    own.zip(wanted).is_some_and(|(own, wanted)| own.image == wanted.image && own.args == wanted.args)
}

/// Deletes pods whose image is missing. The Deployment replaces a deleted pod at once. The kubelet would retry the
/// pull only after minutes.
pub(super) async fn replace_stuck(cluster: &Cluster) -> Result<(), Error> {
    let without_image = |pod: &&Pod| !pods::is_ready(pod) && matches!(pods::trouble(pod), Trouble::Image(_));
    for pod in cluster.master_pods().await?.iter().filter(without_image) {
        let only = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        cluster.call(rights::DELETE_POD, cluster.api::<Pod>().delete(&pod.name_any(), &only)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(generation: i64, status: &Value) -> Deployment {
        let container = json!({"name": "master", "image": "m:2", "args": ["--a"]});
        let deployment = json!({
            "metadata": {"name": "muster", "generation": generation},
            "spec": {"selector": {}, "template": {"spec": {"containers": [container]}}},
            "status": status,
        });
        serde_json::from_value(deployment).expect("not a deployment")
    }

    fn pod(image: &str, status: &Value) -> Pod {
        let mut pod = pods::tests::pod("muster-1", 1, status);
        let spec = json!({"containers": [{"name": "master", "image": image, "args": ["--a"]}]});
        pod.spec = Some(serde_json::from_value(spec).expect("not a pod spec"));
        pod
    }

    fn updated() -> Value {
        json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1})
    }

    #[test]
    fn a_rollout_is_done_when_the_new_pod_serves() {
        let waits = |text: &str| Some(Trouble::Waits(text.to_owned()));
        let ready = || pods::tests::ready();
        let done = judge(&deployment(2, &updated()), &[pod("m:2", &ready())]);
        assert_eq!(done, None);
        let unseen = judge(&deployment(3, &updated()), &[pod("m:2", &ready())]);
        assert_eq!(unseen, waits("the cluster has not noticed the change yet"));
        let old = judge(&deployment(2, &updated()), &[pod("m:1", &ready())]);
        assert_eq!(old, waits("the old master is shutting down"));
        assert_eq!(judge(&deployment(2, &json!({"observedGeneration": 2})), &[]), waits("the pod is not created yet"));
        let starts = judge(&deployment(2, &updated()), &[pod("m:2", &json!({"phase": "Pending"}))]);
        assert_eq!(starts, waits("pod muster-1: it is pending"));
    }

    #[test]
    fn a_missing_image_and_a_refused_pod_end_the_wait() {
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
        let container =
            json!({"name": "m", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": waiting});
        let status = json!({"phase": "Pending", "containerStatuses": [container]});
        let expected = Some(Trouble::Image("ErrImagePull: not found".to_owned()));
        assert_eq!(judge(&deployment(2, &updated()), &[pod("m:2", &status)]), expected);
        let old = judge(&deployment(2, &updated()), &[pod("m:1", &status)]);
        let expected = Some(Trouble::Waits("the old master is shutting down".to_owned()));
        assert_eq!(old, expected, "judge has used the pod with the previous image");
        let condition = json!({"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"});
        let refused = deployment(2, &json!({"observedGeneration": 2, "conditions": [condition]}));
        assert_eq!(judge(&refused, &[]), Some(Trouble::Stuck("exceeded quota".to_owned())));
    }
}
