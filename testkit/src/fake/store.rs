//! Records in memory, for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use protocol::ids::JobName;
use tokio::sync::mpsc;

use master::store::watchers::Watchers;
use master::store::{JobRecord, JobStore, StoreError, StoreEvent, Stored, Version};

/// A store in memory.
#[derive(Debug, Clone, Default)]
pub struct FakeStore(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<JobName, Stored>,
    watchers: Watchers,
    changes: u64,
    history: Vec<(Instant, Written)>,
}

/// A change of a record.
#[derive(Debug, Clone)]
pub enum Written {
    /// The record has this content from now on.
    Record(Box<Stored>),
    /// No record has this name from now on.
    Nothing(JobName),
}

impl FakeStore {
    /// Every change of a record, in order.
    pub async fn history(&self) -> Vec<(Instant, Written)> {
        self.with(|inner| inner.history.clone()).await
    }

    /// Runs work on a blocking thread, because sending an event to a watcher may block.
    async fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut Inner) -> T + Send + 'static) -> T {
        let inner = Arc::clone(&self.0);
        let locked = move || work(&mut inner.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(locked).await.expect("no access to the records panics")
    }
}

impl Inner {
    fn write(&mut self, record: JobRecord) -> Stored {
        self.changes += 1;
        let stored = Stored { record, version: Version(self.changes.to_string()) };
        self.records.insert(stored.name().clone(), stored.clone());
        self.history.push((Instant::now(), Written::Record(Box::new(stored.clone()))));
        self.watchers.tell(&StoreEvent::Changed(Box::new(stored.clone())));
        stored
    }
}

#[async_trait]
impl JobStore for FakeStore {
    async fn create(&self, record: JobRecord) -> Result<Stored, StoreError> {
        self.with(move |inner| match inner.records.get(&record.spec.name) {
            Some(_) => Err(StoreError::Exists(record.spec.name)),
            None => Ok(inner.write(record)),
        })
        .await
    }

    async fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError> {
        let name = name.clone();
        Ok(self.with(move |inner| inner.records.get(&name).cloned()).await)
    }

    async fn list(&self) -> Result<Vec<Stored>, StoreError> {
        Ok(self.with(|inner| inner.records.values().cloned().collect()).await)
    }

    async fn update(&self, record: JobRecord, version: &Version) -> Result<Stored, StoreError> {
        let version = version.clone();
        self.with(move |inner| match inner.records.get(&record.spec.name) {
            Some(stored) if stored.version == version => Ok(inner.write(record)),
            Some(_) => Err(StoreError::Conflict(record.spec.name)),
            None => Err(StoreError::NotFound(record.spec.name)),
        })
        .await
    }

    async fn delete(&self, name: &JobName, uid: &str) -> Result<(), StoreError> {
        let (name, uid) = (name.clone(), uid.to_owned());
        self.with(move |inner| {
            if inner.records.get(&name).is_some_and(|stored| stored.record.uid == uid) {
                inner.records.remove(&name);
                inner.history.push((Instant::now(), Written::Nothing(name.clone())));
                inner.watchers.tell(&StoreEvent::Deleted(name));
            }
        })
        .await;
        Ok(())
    }

    async fn discard(&self, name: &JobName) -> Result<(), StoreError> {
        // All records in memory are readable.
        match self.get(name).await? {
            Some(_) => Err(StoreError::Conflict(name.clone())),
            None => Ok(()),
        }
    }

    async fn watch(&self) -> Result<mpsc::Receiver<StoreEvent>, StoreError> {
        Ok(self
            .with(|inner| {
                let present = inner.records.values().cloned().collect();
                inner.watchers.add(present, true)
            })
            .await)
    }
}
