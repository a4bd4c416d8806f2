//! Asks the cluster which rights the user has.

use futures_util::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use protocol::text::parted;

use super::rights::{ASK_RIGHTS, GET_SECRET, Right};
use super::{Cluster, MUSTER};
use crate::ending::error::Error;

/// Checks that the user has these rights.
///
/// # Errors
/// Names the missing rights. Also fails if a call fails.
pub(super) async fn require(cluster: &Cluster, rights: impl IntoIterator<Item = Right>) -> Result<(), Error> {
    let missing = missing(cluster, rights).await?;
    if missing.is_empty() { Ok(()) } else { Err(cluster.forbidden(&missing)) }
}

/// Which of these rights the user lacks, in the given order.
pub(super) async fn missing(cluster: &Cluster, rights: impl IntoIterator<Item = Right>) -> Result<Vec<Right>, Error> {
    let asked = rights
        .into_iter()
        .map(|right| async move { is_allowed(cluster, right).await.map(|allowed| (!allowed).then_some(right)) });
    Ok(try_join_all(asked).await?.into_iter().flatten().collect())
}

async fn is_allowed(cluster: &Cluster, right: Right) -> Result<bool, Error> {
    let Right { verb, group, resource } = right;
    let (resource, subresource) = parted(resource, '/');
    let attributes = ResourceAttributes {
        namespace: Some(cluster.namespace().to_owned()),
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: subresource.map(str::to_owned),
        // Names the Secret, because the user's right may be limited to this Secret.
        name: (right == GET_SECRET).then(|| MUSTER.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client().clone());
    let answer = cluster.call(ASK_RIGHTS, reviews.create(&PostParams::default(), &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
