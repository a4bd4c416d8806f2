//! The ConfigMap with the master's own agent. In the pods of jobs that bring their code, Python unpacks the agent from
//! this ConfigMap, so these pods start without an init container.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use super::manifest::AGENT_KEY;
use crate::error_chain::error_chain;
use crate::kube::api::{self, APP_COMPONENT, APP_NAME, ApiFailure, MANAGED_BY, MUSTER, call, selector_of};
use crate::mutex::Mutex;

/// The value of [`APP_COMPONENT`] on the ConfigMap.
const COMPONENT: &str = "agent";
/// Prefix of the ConfigMap's name. The hash of the content follows, so each version of the agent has its own ConfigMap.
const PREFIX: &str = "muster-agent-";
/// Number of hexadecimal digits of the hash in the name.
const DIGITS: usize = 16;
/// Maximum bytes of the compressed agent. The API limits the content of a ConfigMap to 1 MiB.
const BYTES_MAX: usize = 900 * 1024;

/// The agent's ConfigMap, and whether pods can use it.
pub(super) struct AgentMap {
    maps: Api<ConfigMap>,
    map: ConfigMap,
    state: Mutex<MapState>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MapState {
    /// No job has needed the ConfigMap yet.
    Unchecked,
    /// The ConfigMap with this uid exists. Its content is this master's agent, and is immutable.
    Exists(Option<String>),
    /// The namespace refuses the ConfigMap, or has another one with this name. Pods copy the agent from an image.
    Refused,
}

impl AgentMap {
    /// Packs the agent. `None` if the agent is too large for a ConfigMap.
    pub(super) fn new(maps: Api<ConfigMap>, agent: &[u8]) -> Option<Self> {
        // Higher levels take twice the time at the start of each master, and save less than 1 %.
        let mut gzip = GzEncoder::new(vec![], Compression::default());
        let packed = gzip.write_all(agent).and_then(|()| gzip.finish()).expect("a Vec accepts all bytes");
        (packed.len() <= BYTES_MAX).then(|| Self { maps, map: map(packed), state: Mutex::new(MapState::Unchecked) })
    }

    /// The name of the ConfigMap; `None` if pods cannot use it.
    pub(super) fn name(&self) -> Option<String> {
        (*self.state.lock() != MapState::Refused).then(|| self.map.name_any())
    }

    /// Creates the ConfigMap, unless it exists.
    ///
    /// # Errors
    /// [`ApiFailure`], if the API may accept the ConfigMap later.
    pub(super) async fn ensure(&self) -> Result<(), ApiFailure> {
        let state = self.ensured().await?;
        if state == MapState::Refused && *self.state.lock() != MapState::Refused {
            warn!(
                config_map = self.map.name_any(),
                "cannot keep the agent in a ConfigMap; pods copy it from the image"
            );
        }
        *self.state.lock() = state;
        Ok(())
    }

    async fn ensured(&self) -> Result<MapState, ApiFailure> {
        let name = self.map.name_any();
        let known = self.state.lock().clone();
        if let MapState::Exists(uid) = known
            && call(self.maps.get_metadata_opt(&name)).await?.is_some_and(|found| found.metadata.uid == uid)
        {
            return Ok(MapState::Exists(uid));
        }
        match call(self.maps.create(&PostParams::default(), &self.map)).await {
            Ok(created) => Ok(MapState::Exists(created.metadata.uid)),
            Err(failure) if failure.says_exists() => {
                let found = call(self.maps.get(&name)).await?;
                let is_same = found.binary_data == self.map.binary_data && found.immutable == Some(true);
                Ok(if is_same { MapState::Exists(found.metadata.uid) } else { MapState::Refused })
            }
            Err(failure) if failure.is_passing() => Err(failure),
            Err(_) => Ok(MapState::Refused),
        }
    }

    /// Deletes the ConfigMaps of other versions of the agent, except those that a pod mounts.
    pub(super) async fn remove_others(&self, pods: &Api<Pod>) {
        if let Err(failure) = self.try_to_remove_others(pods).await {
            warn!(error = error_chain(&failure), "could not delete the agents of other versions");
        }
    }

    async fn try_to_remove_others(&self, pods: &Api<Pod>) -> Result<(), ApiFailure> {
        let maps = call(self.maps.list_metadata(&ListParams::default().labels(&selector_of(COMPONENT)))).await?;
        let others: Vec<String> =
            maps.items.iter().map(ResourceExt::name_any).filter(|name| *name != self.map.name_any()).collect();
        if others.is_empty() {
            return Ok(());
        }
        let pods = call(pods.list(&ListParams::default().labels(&api::ours_selector()))).await?.items;
        let named: BTreeSet<&str> = pods.iter().flat_map(maps_of).collect();
        for name in others.iter().filter(|name| !named.contains(name.as_str())) {
            info!(config_map = name, "deleting an agent of another version");
            call(self.maps.delete(name, &DeleteParams::default())).await?;
        }
        Ok(())
    }
}

/// The ConfigMaps that a pod mounts.
fn maps_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.config_map.as_ref()?.name.as_str()))
}

fn map(packed: Vec<u8>) -> ConfigMap {
    let hash = hex::encode(Sha256::digest(&packed));
    let labels = [(MANAGED_BY, MUSTER), (APP_NAME, "muster-agent"), (APP_COMPONENT, COMPONENT)];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("{PREFIX}{}", &hash[..DIGITS])),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        binary_data: Some(BTreeMap::from([(AGENT_KEY.to_owned(), ByteString(packed))])),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}
