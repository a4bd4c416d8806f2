//! Keeps each copy of a job's code in an immutable ConfigMap, whose name contains the id of the code.

use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{ListParams, PostParams, Preconditions};
use protocol::code::CodeId;
use protocol::ids::UnixMillis;
use tokio::task::spawn_blocking;

use super::{KubeStore, PAGE, of_write, only_if, unavailable};
use crate::code::is_copy_of;
use crate::kube::api::{APP_COMPONENT, APP_NAME, ApiFailure, MANAGED_BY, MUSTER, call, selector_of};
use crate::store::{CODE_COPIES_BYTES_MAX, CodeCopies, CodeCopy, CopyOutcome, StoreError, Unkept, Version};

/// The value of [`APP_COMPONENT`] on every copy.
const COMPONENT: &str = "code";
/// Prefix of the ConfigMaps' names. With the id, a name is longer than the name of any record, so no record has this
/// name.
const PREFIX: &str = "muster-code-";
/// The ConfigMap's key whose value is the content.
const CONTENT: &str = "code";
/// The annotation with the number of bytes of the content, so that no list needs the content.
const BYTES: &str = "muster/bytes";
/// The annotation with the time of the newest [`CodeCopies::keep`]. A change of it changes the resourceVersion, although
/// the content is immutable.
const RENEWED: &str = "muster/renewed";
/// Maximum attempts to keep a copy while other masters change it too.
const ATTEMPTS: usize = 5;

#[async_trait]
impl CodeCopies for KubeStore {
    async fn keep(&self, id: CodeId, content: &[u8]) -> Result<CopyOutcome, StoreError> {
        for _ in 0..ATTEMPTS {
            if let Some(kept) = self.try_to_keep(id, content).await? {
                return Ok(kept);
            }
        }
        Ok(CopyOutcome::Not(Unkept::Refused(format!("the ConfigMap {} cannot be replaced", name_of(id)))))
    }

    async fn read(&self, id: CodeId) -> Result<Option<Vec<u8>>, StoreError> {
        let map = call(self.maps.get_opt(&name_of(id))).await.map_err(unavailable)?;
        Ok(map.and_then(|map| content_of(&map).map(<[u8]>::to_vec)))
    }

    async fn copies(&self) -> Result<Vec<CodeCopy>, StoreError> {
        Ok(self.listed().await?.into_iter().filter_map(|meta| copy_of(&meta)).collect())
    }

    async fn remove(&self, copy: &CodeCopy) -> Result<(), StoreError> {
        let CodeCopy { id, uid, version: Version(version) } = copy;
        let this = Preconditions { uid: Some(uid.clone()), resource_version: Some(version.clone()) };
        match call(self.maps.delete(&name_of(*id), &only_if(this))).await {
            Ok(_) | Err(ApiFailure::Refused { status: 404 | 409, .. }) => Ok(()),
            Err(failure) => Err(unavailable(failure)),
        }
    }
}

impl KubeStore {
    /// `None` if the ConfigMap has changed meanwhile, or was removed because its content was wrong.
    async fn try_to_keep(&self, id: CodeId, content: &[u8]) -> Result<Option<CopyOutcome>, StoreError> {
        let name = name_of(id);
        let Some(there) = call(self.maps.get_opt(&name)).await.map_err(unavailable)? else {
            return self.create_copy(id, content).await;
        };
        let Some(copy) = copy_of(&there.metadata).filter(|_| is_ours(&there)) else {
            return Ok(Some(CopyOutcome::Not(Unkept::Foreign(name))));
        };
        let Some(content) = usable(id, &there, content).await else {
            self.remove(&copy).await?;
            return Ok(None);
        };
        let renewed = self.map(id, &content, Some(copy.version));
        match call(self.maps.replace(&name, &PostParams::default(), &renewed)).await {
            Ok(map) => Ok(copy_of(&map.metadata).map(CopyOutcome::Renewed)),
            Err(ApiFailure::Refused { status: 404 | 409, .. }) => Ok(None),
            Err(failure) => refused(failure).map(Some),
        }
    }

    async fn create_copy(&self, id: CodeId, content: &[u8]) -> Result<Option<CopyOutcome>, StoreError> {
        let bytes = |meta: &ObjectMeta| meta.annotations.as_ref()?.get(BYTES)?.parse::<u64>().ok();
        let present: u64 = self.listed().await?.iter().filter_map(bytes).sum();
        if present + content.len() as u64 > CODE_COPIES_BYTES_MAX {
            return Ok(Some(CopyOutcome::Not(Unkept::Full)));
        }
        match call(self.maps.create(&PostParams::default(), &self.map(id, content, None))).await {
            Ok(map) => Ok(copy_of(&map.metadata).map(CopyOutcome::New)),
            Err(failure) if failure.says_exists() => Ok(None),
            Err(failure) => refused(failure).map(Some),
        }
    }

    /// The metadata of all copies.
    async fn listed(&self) -> Result<Vec<ObjectMeta>, StoreError> {
        let (mut found, mut page) = (vec![], ListParams::default().labels(&selector_of(COMPONENT)).limit(PAGE));
        loop {
            let maps = call(self.maps.list_metadata(&page)).await.map_err(unavailable)?;
            found.extend(maps.items.into_iter().map(|map| map.metadata));
            // The API sends an empty text with the last page.
            let Some(next) = maps.metadata.continue_.filter(|next| !next.is_empty()) else { return Ok(found) };
            page = page.continue_token(&next);
        }
    }

    fn map(&self, id: CodeId, content: &[u8], version: Option<Version>) -> ConfigMap {
        let owned =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let (bytes, renewed) = (content.len().to_string(), timestamp(self.cluster.now()));
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name_of(id)),
                labels: Some(owned(&[(MANAGED_BY, MUSTER), (APP_NAME, "muster-code"), (APP_COMPONENT, COMPONENT)])),
                annotations: Some(owned(&[(BYTES, &bytes), (RENEWED, &renewed)])),
                resource_version: version.map(|Version(version)| version),
                ..ObjectMeta::default()
            },
            binary_data: Some(BTreeMap::from([(CONTENT.to_owned(), ByteString(content.to_vec()))])),
            immutable: Some(true),
            ..ConfigMap::default()
        }
    }
}

/// The content of a ConfigMap, if this content equals `content` or is the same code in other bytes. Such a copy stays,
/// because the content of an immutable ConfigMap cannot be replaced.
async fn usable(id: CodeId, map: &ConfigMap, content: &[u8]) -> Option<Vec<u8>> {
    let there = content_of(map)?.to_vec();
    if there == content {
        return Some(there);
    }
    // Unpacking may take long.
    let check = spawn_blocking(move || is_copy_of(id, &there).then_some(there));
    check.await.expect("no check of a copy panics")
}

fn name_of(id: CodeId) -> String {
    format!("{PREFIX}{id}")
}

fn copy_of(meta: &ObjectMeta) -> Option<CodeCopy> {
    let id = meta.name.as_deref()?.strip_prefix(PREFIX)?.parse().ok()?;
    Some(CodeCopy { id, uid: meta.uid.clone()?, version: Version(meta.resource_version.clone()?) })
}

fn content_of(map: &ConfigMap) -> Option<&[u8]> {
    Some(&map.binary_data.as_ref()?.get(CONTENT)?.0)
}

/// Whether a master has created this ConfigMap as a copy of code.
fn is_ours(map: &ConfigMap) -> bool {
    let has = |label: &str, value: &str| map.labels().get(label).is_some_and(|found| found == value);
    has(MANAGED_BY, MUSTER) && has(APP_COMPONENT, COMPONENT)
}

/// A time in milliseconds, so that two renewals differ.
fn timestamp(time: UnixMillis) -> String {
    let time = i64::try_from(time.0).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    time.unwrap_or(Timestamp::MAX).to_string()
}

fn refused(failure: ApiFailure) -> Result<CopyOutcome, StoreError> {
    let error = of_write(failure);
    if let StoreError::Refused(message) | StoreError::OverQuota(message) = error {
        return Ok(CopyOutcome::Not(Unkept::Refused(message)));
    }
    Err(error)
}
