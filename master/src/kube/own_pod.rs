//! What the master's own pod uses. A job that used the same claims or Secrets could read the master's state or tokens.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use protocol::image::ImageRef;

/// The name of the master's container in `manifests/`.
const CONTAINER: &str = "master";

/// What a master reads from its own pod. Empty if the master runs elsewhere.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnPod {
    /// The master's image, which contains the agent too.
    pub(crate) image: Option<ImageRef>,
    /// What the pod uses.
    pub(crate) uses: OwnUses,
}

/// The objects of the jobs' namespace that the master's own pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnUses {
    /// Exactly these objects.
    Known(BTreeSet<Used>),
    /// The master runs in a pod of the namespace, but has not found this pod.
    Unknown,
}

/// An object that a pod can read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Used {
    /// A claim that the pod mounts.
    Claim(String),
    /// A Secret in a volume or in variables. Secrets for image pulls are not listed, because no container can read them.
    Secret(String),
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(name) => write!(f, "claim \"{name}\""),
            Self::Secret(name) => write!(f, "Secret \"{name}\""),
        }
    }
}

impl Default for OwnUses {
    /// The objects of a master that runs outside the namespace.
    fn default() -> Self {
        Self::Known(BTreeSet::new())
    }
}

impl OwnPod {
    pub(super) fn of(found: Option<&Pod>) -> Self {
        let Some(pod) = found else { return Self { image: None, uses: OwnUses::Unknown } };
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let master =
            containers.clone().find(|container| container.name == CONTAINER).or_else(|| containers.clone().next());
        let image = master.and_then(|master| master.image.as_deref()?.parse().ok());
        Self { image, uses: OwnUses::Known(used(pod).collect()) }
    }
}

/// The claims and Secrets that a pod uses.
pub(crate) fn used(pod: &Pod) -> impl Iterator<Item = Used> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let containers =
        pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    volumes.flat_map(of_volume).chain(containers.flat_map(of_container))
}

fn of_volume(volume: &Volume) -> impl Iterator<Item = Used> {
    let claim = volume.persistent_volume_claim.as_ref().map(|claim| Used::Claim(claim.claim_name.clone()));
    let secret = volume.secret.as_ref().and_then(|secret| secret.secret_name.clone());
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    let projected = sources.filter_map(|source| Some(source.secret.as_ref()?.name.clone()));
    claim.into_iter().chain(secret.into_iter().chain(projected).map(Used::Secret))
}

fn of_container(container: &Container) -> impl Iterator<Item = Used> {
    let values = container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
    let variables = values.filter_map(|value| Some(value.secret_key_ref.as_ref()?.name.clone()));
    let groups = container.env_from.iter().flatten();
    variables.chain(groups.filter_map(|group| Some(group.secret_ref.as_ref()?.name.clone()))).map(Used::Secret)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_master_finds_its_image_its_claims_and_its_secrets_in_its_own_pod() {
        let pod = |containers: serde_json::Value| {
            let volumes = json!([
                { "name": "state", "persistentVolumeClaim": { "claimName": "output" } },
                { "name": "token", "secret": { "secretName": "muster-7g2h" } },
                { "name": "key", "projected": { "sources": [{ "secret": { "name": "agent-key" } }] } },
            ]);
            let spec =
                json!({ "containers": containers, "volumes": volumes, "imagePullSecrets": [{ "name": "pull" }] });
            serde_json::from_value(json!({ "spec": spec })).unwrap()
        };
        let sidecar = json!({ "name": "proxy", "image": "proxy:1" });
        let master = json!({
            "name": "master",
            "image": "muster-master:2",
            "env": [{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "sealed", "key": "token" } } }],
            "envFrom": [{ "secretRef": { "name": "external" } }],
        });
        let own = OwnPod::of(Some(&pod(json!([sidecar, master]))));
        assert_eq!(own.image, "muster-master:2".parse().ok());
        let secrets = ["muster-7g2h", "agent-key", "sealed", "external"].map(|name| Used::Secret(name.to_owned()));
        let uses = secrets.into_iter().chain([Used::Claim("output".to_owned())]).collect();
        assert_eq!(own.uses, OwnUses::Known(uses));
        assert_eq!(OwnPod::of(Some(&pod(json!([sidecar])))).image, "proxy:1".parse().ok());
        assert_eq!(OwnPod::of(Some(&Pod::default())), OwnPod::default());
        assert_eq!(OwnPod::of(None), OwnPod { image: None, uses: OwnUses::Unknown });
    }
}
