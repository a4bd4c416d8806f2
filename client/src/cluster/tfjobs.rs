//! Finds the namespaces that have TFJobs, and the namespaces whose master runs TFJobs.

use std::collections::BTreeSet;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, ResourceExt};
use protocol::tfjob::{TFJOB_GROUP, TFJOB_KIND};

use super::rights::{self, Right};
use super::{Cluster, manifests};
use crate::ending::error::Error;

/// The namespaces with TFJobs. The cluster must have the kind TFJob.
pub(super) async fn places(cluster: &Cluster) -> Result<BTreeSet<String>, Error> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(TFJOB_GROUP, "v1", TFJOB_KIND));
    namespaces(cluster, rights::LIST_TFJOBS, &kind, &ListParams::default()).await
}

/// The namespaces whose master has the rights on TFJobs.
pub(super) async fn followed(cluster: &Cluster) -> Result<BTreeSet<String>, Error> {
    let role = &manifests::tfjob_rights()[0];
    let named = ListParams::default().fields(&format!("metadata.name={}", manifests::name(role)));
    namespaces(cluster, rights::LIST_ROLES, &manifests::resource(role), &named).await
}

/// The namespaces that have TFJobs, but no master that runs TFJobs. Empty if no master in the cluster runs TFJobs:
/// another program, such as Kubeflow, may run them.
pub(super) async fn left_alone(cluster: &Cluster) -> Result<BTreeSet<String>, Error> {
    let followed = followed(cluster).await?;
    if followed.is_empty() {
        return Ok(BTreeSet::new());
    }
    Ok(&places(cluster).await? - &followed)
}

async fn namespaces(
    cluster: &Cluster,
    right: Right,
    resource: &ApiResource,
    selected: &ListParams,
) -> Result<BTreeSet<String>, Error> {
    let everywhere: Api<DynamicObject> = Api::all_with(cluster.client().clone(), resource);
    let found = cluster.call(right, everywhere.list_metadata(selected)).await?;
    Ok(found.iter().filter_map(ResourceExt::namespace).collect())
}
