//! Stores each record in a ConfigMap. The ConfigMap owns the job's pods, so the ConfigMap's uid is the job's uid. The
//! ConfigMap's resourceVersion is the record's version.

mod code;
mod reports;

use std::collections::BTreeMap;
use std::error::Error;

use async_trait::async_trait;
use job::key::JobKey;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions, PropagationPolicy};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use protocol::ids::{JobName, UnixMillis};
use tokio::sync::{broadcast, mpsc};

use self::reports::follow;
use super::{
    CodeCopies, JobRecord, JobStore, NotRead, StoreError, StoreEvent, Stored, Version, delete_command, unavailable,
};
use crate::kube::api::{
    APP_COMPONENT, APP_INSTANCE, APP_NAME, ApiFailure, Cluster, JOB, MANAGED_BY, MUSTER, call, selector_of,
};
use crate::kube::changes::changes_of;
use crate::kube::record_name;

/// The ConfigMap's key whose value is the record as JSON.
const RECORD: &str = "record";
/// The value of [`APP_COMPONENT`] on every record.
const COMPONENT: &str = "job";
/// Maximum records in one answer of the API. All records in one answer could take longer than a call may take.
const PAGE: u32 = 500;
/// Maximum changes that wait for a slow reader.
const BACKLOG: usize = 1024;

/// A store in one namespace.
#[derive(Clone)]
pub struct KubeStore {
    cluster: Cluster,
    maps: Api<ConfigMap>,
    /// The results of this store's writes, for its watches: the API's watch may report them late.
    written: broadcast::Sender<Stored>,
}

impl KubeStore {
    /// The store in the namespace of `cluster`.
    pub fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), maps: cluster.objects(), written: broadcast::Sender::new(BACKLOG) }
    }

    /// Passes a written record to the watches of this store.
    fn tell(&self, written: Stored) -> Stored {
        // This fails if there is no watch.
        let _ = self.written.send(written.clone());
        written
    }

    /// Passes the readable records on, one page after another.
    async fn each(&self, mut take: impl FnMut(Stored) + Send) -> Result<(), StoreError> {
        let mut page = ListParams::default().labels(&selector_of(COMPONENT)).limit(PAGE);
        loop {
            let maps = call(self.maps.list(&page)).await.map_err(unavailable)?;
            maps.iter().filter_map(|map| readable(map).ok()).for_each(&mut take);
            // The API sends an empty text with the last page.
            let Some(next) = maps.metadata.continue_.filter(|next| !next.is_empty()) else { return Ok(()) };
            page = page.continue_token(&next);
        }
    }

    async fn read(&self, name: &JobName) -> Result<Option<ConfigMap>, StoreError> {
        call(self.maps.get_opt(&record_name(name.as_str()))).await.map_err(unavailable)
    }
}

#[async_trait]
impl JobStore for KubeStore {
    async fn create(&self, record: JobRecord) -> Result<Stored, StoreError> {
        let name = record.spec.name.clone();
        match call(self.maps.create(&PostParams::default(), &map(&record, None)?)).await {
            Ok(created) => parse(&name, &created).map(|created| self.tell(created)),
            Err(failure) if failure.says_exists() => {
                // The existing record may be this record, if the answer to an earlier call was lost. The written JSON
                // keeps the uid of the submit, so the records can be compared.
                let there = self.read(&name).await?;
                let is_own = there.as_ref().and_then(written).is_some_and(|written| written == record);
                match there {
                    Some(there) if is_own => parse(&name, &there).map(|created| self.tell(created)),
                    Some(_) | None => Err(StoreError::Exists(name)),
                }
            }
            Err(failure) => Err(of_write(failure)),
        }
    }

    async fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError> {
        self.read(name).await?.map(|there| parse(name, &there)).transpose()
    }

    async fn list(&self) -> Result<Vec<Stored>, StoreError> {
        let mut records: Vec<Stored> = vec![];
        self.each(|stored| records.push(stored)).await?;
        records.sort_by(|one, other| one.name().cmp(other.name()));
        Ok(records)
    }

    async fn holders(&self) -> Result<Vec<String>, StoreError> {
        let mut holders = vec![];
        self.each(|stored| holders.push(stored.record.holder)).await?;
        Ok(holders)
    }

    async fn update(&self, record: JobRecord, version: &Version) -> Result<Stored, StoreError> {
        let name = record.spec.name.clone();
        let map = map(&record, Some(version))?;
        match call(self.maps.replace(&record_name(name.as_str()), &PostParams::default(), &map)).await {
            Ok(updated) => parse(&name, &updated).map(|updated| self.tell(updated)),
            Err(ApiFailure::Refused { status: 409, .. }) => Err(StoreError::Conflict(name)),
            Err(ApiFailure::Refused { status: 404, .. }) => Err(StoreError::NotFound(name)),
            Err(failure) => Err(of_write(failure)),
        }
    }

    async fn delete(&self, name: &JobName, uid: &str) -> Result<(), StoreError> {
        let this_job = only_if(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        match call(self.maps.delete(&record_name(name.as_str()), &this_job)).await {
            // The record is absent, or belongs to another job by now.
            Ok(_) | Err(ApiFailure::Refused { status: 404 | 409, .. }) => Ok(()),
            Err(failure) => Err(unavailable(failure)),
        }
    }

    async fn discard(&self, name: &JobName) -> Result<(), StoreError> {
        let Some(there) = self.read(name).await? else { return Ok(()) };
        match parse(name, &there) {
            Ok(_) => return Err(StoreError::Conflict(name.clone())),
            // Without the labels of this job, the ConfigMap may belong to anyone.
            Err(error) if name_of(&there).as_ref() != Some(name) => return Err(error),
            Err(_) => {}
        }
        let this = Preconditions { uid: there.uid(), resource_version: there.resource_version() };
        match call(self.maps.delete(&record_name(name.as_str()), &only_if(this))).await {
            Ok(_) | Err(ApiFailure::Refused { status: 404, .. }) => Ok(()),
            Err(ApiFailure::Refused { status: 409, .. }) => Err(StoreError::Conflict(name.clone())),
            Err(failure) => Err(unavailable(failure)),
        }
    }

    fn now(&self) -> UnixMillis {
        self.cluster.now()
    }

    async fn watch(&self) -> Result<mpsc::Receiver<StoreEvent>, StoreError> {
        // Return a permanent error here. The watch would only log the error, and retry for ever.
        call(self.maps.list(&ListParams::default().limit(1))).await.map_err(unavailable)?;
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let records = watcher::Config::default().labels(&selector_of(COMPONENT));
        let (events, written) = (changes_of(self.cluster.watched(), records), self.written.clone());
        tokio::spawn(follow(events, written, sender));
        Ok(receiver)
    }

    fn code_copies(&self) -> Option<&dyn CodeCopies> {
        Some(self)
    }
}

/// The job whose name the labels contain.
fn name_of(map: &ConfigMap) -> Option<JobName> {
    map.labels().get(JOB)?.parse().ok()
}

/// The job whose record this ConfigMap is. `None` for a copy under another name: the job belongs to the original.
fn job_of(map: &ConfigMap) -> Option<JobName> {
    name_of(map).filter(|name| map.name_any() == record_name(name.as_str()))
}

/// The version as a number. Versions of one kind of object can be compared (Kubernetes' API concepts, "Resource versions").
fn number(Version(version): &Version) -> Option<u64> {
    version.parse().ok()
}

fn version_of(map: &ConfigMap) -> Version {
    Version(map.resource_version().unwrap_or_default())
}

fn map(record: &JobRecord, version: Option<&Version>) -> Result<ConfigMap, StoreError> {
    let job = record.spec.name.to_string();
    let labels =
        [(MANAGED_BY, MUSTER), (APP_NAME, "muster-job"), (APP_INSTANCE, &job), (APP_COMPONENT, COMPONENT), (JOB, &job)];
    let text = serde_json::to_string(record).map_err(unavailable)?;
    Ok(ConfigMap {
        metadata: ObjectMeta {
            name: Some(record_name(&job)),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            resource_version: version.map(|Version(version)| version.clone()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(RECORD.to_owned(), text)])),
        ..ConfigMap::default()
    })
}

/// The record exactly as it was written.
fn written(map: &ConfigMap) -> Option<JobRecord> {
    serde_json::from_str(map.data.as_ref()?.get(RECORD)?).ok()
}

/// The record with the job's uid, which is the uid of the ConfigMap that owns the pods.
fn parse(name: &JobName, map: &ConfigMap) -> Result<Stored, StoreError> {
    let (config_map, uid) = (map.name_any(), map.uid().unwrap_or_default());
    let text = map.data.as_ref().and_then(|data| data.get(RECORD)).map_or("", String::as_str);
    let is_named_so = job_of(map).as_ref() == Some(name);
    let record = if is_named_so {
        JobRecord::read(name, text.as_bytes())
    } else {
        Err(NotRead::Invalid(format!("ConfigMap {config_map} is not named and labelled as a record")))
    };
    let removal = if is_named_so {
        delete_command(name)
    } else {
        // The ConfigMap may belong to anyone, so no master deletes it.
        format!("kubectl delete configmap {config_map} --namespace {}", map.namespace().unwrap_or_default())
    };
    let version = version_of(map);
    match record {
        Ok(record) => Ok(Stored { record: JobRecord { uid, ..record }, version }),
        Err(NotRead::OtherFormat(format)) => Err(StoreError::OtherFormat { job: name.clone(), format }),
        Err(NotRead::Invalid(reason)) => {
            Err(StoreError::Unreadable { job: JobKey { name: name.clone(), uid }, reason, removal, version })
        }
    }
}

/// Reads a record that was found by its labels.
fn readable(map: &ConfigMap) -> Result<Stored, Box<dyn Error>> {
    let label = map.labels().get(JOB).map(String::as_str).unwrap_or_default();
    Ok(parse(&label.parse()?, map)?)
}

fn only_if(preconditions: Preconditions) -> DeleteParams {
    DeleteParams {
        preconditions: Some(preconditions),
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    }
}

fn of_write(failure: ApiFailure) -> StoreError {
    if failure.says_over_quota() {
        return StoreError::OverQuota(failure.to_string());
    }
    match failure {
        // The object is too long or forbidden, so a retry would fail too.
        ApiFailure::Refused { status: 400 | 403 | 413 | 422, message, .. } => StoreError::Refused(message),
        failure @ (ApiFailure::Refused { .. } | ApiFailure::Unreachable(_) | ApiFailure::Silent) => {
            unavailable(failure)
        }
    }
}
