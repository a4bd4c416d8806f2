//! Removes the master of a namespace with all its jobs.

use std::time::Duration;

use futures_util::stream::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::install::{delete, find as find_object, has_tfjobs, is_ours};
use super::rights::Right;
use super::{Cluster, MASTER_PODS, MUSTER, access, manifests, pods, rights, rollout, tfjobs};
use crate::ending::error::{Cause, Error};
use crate::output::{Notes, spelled};

/// Selects everything that a master has created for its jobs.
const OF_JOBS: &str = "app.kubernetes.io/managed-by=muster";
/// Selects the records of jobs. Other ConfigMaps of the master contain code.
const RECORDS: &str = "app.kubernetes.io/managed-by=muster,app.kubernetes.io/component=job";
/// The label with a job's name.
const JOB: &str = "muster/job";
/// Maximum time until pods have ended, in addition to their longest termination grace.
const BEYOND_GRACE: Duration = Duration::from_secs(150);
/// The termination grace of a pod that sets none (Kubernetes API, `terminationGracePeriodSeconds`).
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// What an uninstallation removes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Removable {
    /// The names of all jobs that have a record.
    pub(crate) jobs: Vec<String>,
    /// The names of the jobs that have not ended, or whose record cannot be read.
    pub(crate) unfinished: Vec<String>,
    /// The installed objects, as `kind/name`, in the order of their removal.
    pub(crate) objects: Vec<String>,
}

/// The objects that an installation may have created in a namespace, in their order of removal: the Deployment first,
/// the service account last.
fn installed() -> Vec<DynamicObject> {
    let mut objects = manifests::required(&manifests::default_image());
    objects.extend(manifests::tfjob_rights());
    objects.extend(manifests::pull_secret_objects());
    objects.push(manifests::node_port());
    objects.sort_by_key(|object| manifests::kind(object) != "Deployment");
    objects[1..].reverse();
    objects
}

/// Lists what [`remove`] would remove.
///
/// # Errors
/// Names the missing rights if a right for the removal is missing. Without this check, the removal would stop halfway.
pub(crate) async fn find(cluster: &Cluster) -> Result<Removable, Error> {
    access::require(cluster, rights::to_uninstall()).await?;
    let labels = ListParams::default().labels(RECORDS);
    let records = cluster.call(rights::LIST_RECORDS, cluster.api::<ConfigMap>().list(&labels)).await?.items;
    let mut found = sorted(&records);
    for object in installed() {
        if find_object(cluster, &object).await?.is_some_and(|found| is_ours(&found)) {
            found.objects.push(manifests::shown(&object));
        }
    }
    if let Some(kind) = unused_kind(cluster).await? {
        access::require(cluster, [rights::on_object("delete", manifests::kind(&kind))]).await?;
        found.objects.push(manifests::shown(&kind));
    }
    if own_secret(cluster).await?.is_some() {
        found.objects.push("secret/muster".to_owned());
    }
    Ok(found)
}

/// The jobs of these records. A job whose record cannot be read is listed as unfinished.
fn sorted(records: &[ConfigMap]) -> Removable {
    let mut found = Removable::default();
    for record in records {
        let name = record.labels().get(JOB).cloned().unwrap_or_else(|| record.name_any());
        let text = record.data.as_ref().and_then(|data| data.get("record"));
        let parsed = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
        if parsed.is_none_or(|record| record.get("ended").is_none_or(Value::is_null)) {
            found.unfinished.push(name.clone());
        }
        found.jobs.push(name);
    }
    found
}

/// Removes the master, then the jobs when the master has ended, and then the other objects. Removes the Secret last.
pub(crate) async fn remove(cluster: &Cluster, notes: &Notes) -> Result<(), Error> {
    let mut objects = installed().into_iter();
    let deployment = objects.next().expect("the manifests have a Deployment, which is sorted first");
    remove_object(cluster, &deployment, notes).await?;
    // A master that still runs would create the pods and policies of its jobs again.
    until_gone(cluster, MASTER_PODS, notes).await?;
    delete_all::<ConfigMap>(cluster, rights::DELETE_RECORDS).await?;
    delete_all::<Pod>(cluster, rights::DELETE_PODS).await?;
    delete_all::<NetworkPolicy>(cluster, rights::DELETE_POLICIES).await?;
    until_gone(cluster, OF_JOBS, notes).await?;
    // `unused_kind` looks for this installation's rights on TFJobs, so these rights are removed after the kind.
    if let Some(kind) = unused_kind(cluster).await? {
        remove_object(cluster, &kind, notes).await?;
    }
    for object in objects {
        remove_object(cluster, &object, notes).await?;
    }
    if own_secret(cluster).await?.is_some() {
        let (api, params) = (cluster.api::<Secret>(), DeleteParams::default());
        cluster.call(rights::DELETE_SECRET, api.delete(MUSTER, &params)).await?;
        notes.say("secret/muster deleted");
    }
    Ok(())
}

async fn remove_object(cluster: &Cluster, object: &DynamicObject, notes: &Notes) -> Result<(), Error> {
    if delete(cluster, object).await? {
        notes.say(&format!("{} deleted", manifests::shown(object)));
    }
    Ok(())
}

/// The kind TFJob, if only this namespace uses it. `None` if this installation does not run TFJobs, if another
/// namespace has TFJobs or a master for them, or if the user may not read other namespaces. Deleting the kind deletes
/// all TFJobs of the cluster.
async fn unused_kind(cluster: &Cluster) -> Result<Option<DynamicObject>, Error> {
    if !has_tfjobs(cluster).await? {
        return Ok(None);
    }
    let kind = manifests::tfjob_kind();
    let asked = async {
        let used = &tfjobs::followed(cluster).await? | &tfjobs::places(cluster).await?;
        if used.iter().any(|namespace| namespace != cluster.namespace()) {
            return Ok(None);
        }
        find_object(cluster, &kind).await
    };
    match asked.await {
        Ok(found) => Ok(found.filter(is_ours).map(|_| kind)),
        Err(Error { cause: Cause::Forbidden, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The Secret `muster`, if it has the keys of a master. Its label is not checked, because `make token` sets none.
async fn own_secret(cluster: &Cluster) -> Result<Option<Secret>, Error> {
    let secret = cluster.secret().await?;
    Ok(secret.filter(|secret| cluster.check_keys(secret).is_ok()))
}

async fn delete_all<K>(cluster: &Cluster, right: Right) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let (params, labels) = (DeleteParams::background(), ListParams::default().labels(OF_JOBS));
    cluster.call(right, cluster.api::<K>().delete_collection(&params, &labels)).await.map(drop)
}

/// Waits until all pods with these labels have ended.
async fn until_gone(cluster: &Cluster, labels: &str, notes: &Notes) -> Result<(), Error> {
    let mut changes = rollout::pod_changes(cluster, labels);
    let mut left = running(cluster, labels).await?;
    let limit = longest_grace(&left) + BEYOND_GRACE;
    let work = async {
        while !left.is_empty() {
            notes.show_step(&format!("waiting until {} pods have ended", left.len()));
            changes.next().await;
            left = running(cluster, labels).await?;
        }
        Ok(())
    };
    let outcome = timeout(limit, work).await;
    notes.end_progress();
    let late = || Error::master(format!("pods have not ended after {}: {} still run", spelled(limit), left.len()));
    outcome.unwrap_or_else(|_| Err(late()))
}

/// The pods with these labels that have not ended.
async fn running(cluster: &Cluster, labels: &str) -> Result<Vec<Pod>, Error> {
    let selected = ListParams::default().labels(labels);
    let found = cluster.call(rights::LIST_PODS, cluster.api::<Pod>().list(&selected)).await?;
    Ok(found.items.into_iter().filter(|pod| !pods::has_ended(pod)).collect())
}

fn longest_grace(pods: &[Pod]) -> Duration {
    let grace = |pod: &Pod| {
        let seconds = pod.spec.as_ref()?.termination_grace_period_seconds?;
        seconds.try_into().ok().map(Duration::from_secs)
    };
    pods.iter().map(|pod| grace(pod).unwrap_or(DEFAULT_GRACE)).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(name: &str, text: &str) -> ConfigMap {
        let map =
            json!({"metadata": {"name": format!("muster-{name}"), "labels": {JOB: name}}, "data": {"record": text}});
        serde_json::from_value(map).expect("the JSON is not a ConfigMap")
    }

    #[test]
    fn jobs_without_a_result_and_jobs_with_an_unreadable_record_are_unfinished() {
        let records = [
            record("done", r#"{"ended": {"result": {}}}"#),
            record("runs", r#"{"ended": null}"#),
            record("damaged", "{"),
        ];
        let found = sorted(&records);
        assert_eq!(found.jobs, ["done", "runs", "damaged"]);
        assert_eq!(found.unfinished, ["runs", "damaged"]);
    }

    #[test]
    fn the_pod_with_the_longest_grace_decides_how_long_uninstall_waits() {
        let pod = |grace: Option<u32>| -> Pod {
            let spec = json!({"containers": [], "terminationGracePeriodSeconds": grace});
            serde_json::from_value(json!({"spec": spec})).expect("the JSON is not a pod")
        };
        assert_eq!(longest_grace(&[pod(Some(30)), pod(Some(900)), pod(None)]), Duration::from_secs(900));
        assert_eq!(longest_grace(&[pod(Some(10)), pod(None)]), DEFAULT_GRACE);
    }

    #[test]
    fn of_the_objects_in_the_manifests_the_deployment_is_removed_first_and_the_service_account_last() {
        let shown: Vec<String> = installed().iter().map(manifests::shown).collect();
        let names = [
            "deployment/muster",
            "service/muster",
            "rolebinding/muster-pull-secrets",
            "role/muster-pull-secrets",
            "rolebinding/muster-tfjobs",
            "role/muster-tfjobs",
            "rolebinding/muster",
            "role/muster",
            "serviceaccount/muster",
        ];
        assert_eq!(shown, names);
    }
}
