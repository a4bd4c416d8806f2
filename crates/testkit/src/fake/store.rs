//! Records in memory, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use protocol::code::CodeId;
use protocol::ids::JobName;
use tokio::sync::{mpsc, watch};

use master::code::is_copy_of;
use master::mutex::Mutex;
use master::store::watchers::Watchers;
use master::store::{
    CodeCopies, CodeCopy, CopyOutcome, JobRecord, JobStore, StoreError, StoreEvent, Stored, Unkept, Version,
};

/// A store in memory.
#[derive(Debug, Clone, Default)]
pub struct FakeStore(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<JobName, Stored>,
    codes: BTreeMap<CodeId, (CodeCopy, Vec<u8>)>,
    /// Maximum number of records and of copies of code together, as a quota of a namespace sets it.
    quota: Option<usize>,
    watchers: Watchers,
    changes: u64,
    history: Vec<(Instant, Written)>,
    /// The code whose copy was read last.
    last_read: watch::Sender<Option<CodeId>>,
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

    /// Sets the maximum number of records and of copies of code together.
    pub async fn set_quota(&self, quota: usize) {
        self.with(move |inner| inner.quota = Some(quota)).await;
    }

    /// Replaces the content of a copy, as a user with the right to write ConfigMaps could do. `None` removes the copy.
    pub async fn tamper(&self, id: CodeId, content: Option<Vec<u8>>) {
        self.with(move |inner| match content {
            Some(content) => drop(inner.write_copy(id, content)),
            None => drop(inner.codes.remove(&id)),
        })
        .await;
    }

    /// Waits until a copy is read again.
    pub async fn read_again(&self, id: CodeId) {
        let mut last_read = self.with(|inner| inner.last_read.subscribe()).await;
        while last_read.changed().await.is_ok() && *last_read.borrow_and_update() != Some(id) {}
    }

    /// Runs work on a blocking thread, because sending an event to a watcher may block.
    async fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut Inner) -> T + Send + 'static) -> T {
        let inner = Arc::clone(&self.0);
        let locked = move || work(&mut inner.lock());
        tokio::task::spawn_blocking(locked).await.expect("no access to the records panics")
    }
}

impl Inner {
    fn is_full(&self) -> bool {
        self.quota.is_some_and(|quota| self.records.len() + self.codes.len() >= quota)
    }

    /// Writes a copy. A copy with another content gets another uid.
    fn write_copy(&mut self, id: CodeId, content: Vec<u8>) -> CodeCopy {
        self.changes += 1;
        let same = self.codes.remove(&id).filter(|(_, before)| *before == content);
        let uid = same.map_or_else(|| format!("uid-{}", self.changes), |(copy, _)| copy.uid);
        let copy = CodeCopy { id, uid, version: Version(self.changes.to_string()) };
        self.codes.insert(id, (copy.clone(), content));
        copy
    }

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
            Some(_) => Err(StoreError::Exists(record.spec.name.clone())),
            None if inner.is_full() => Err(StoreError::OverQuota("exceeded quota".to_owned())),
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
            Some(_) => Err(StoreError::Conflict(record.spec.name.clone())),
            None => Err(StoreError::NotFound(record.spec.name.clone())),
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

    fn code_copies(&self) -> Option<&dyn CodeCopies> {
        Some(self)
    }
}

#[async_trait]
impl CodeCopies for FakeStore {
    async fn keep(&self, id: CodeId, content: &[u8]) -> Result<CopyOutcome, StoreError> {
        let content = content.to_vec();
        let keep = move |inner: &mut Inner| {
            let before = inner.codes.get(&id).map(|(_, before)| before.clone());
            let usable = before.filter(|before| *before == content || is_copy_of(id, before));
            let (is_new, content) = (usable.is_none(), usable.unwrap_or(content));
            if is_new && inner.is_full() {
                return CopyOutcome::Not(Unkept::Refused("exceeded quota".to_owned()));
            }
            let copy = inner.write_copy(id, content);
            if is_new { CopyOutcome::New(copy) } else { CopyOutcome::Renewed(copy) }
        };
        Ok(self.with(keep).await)
    }

    async fn read(&self, id: CodeId) -> Result<Option<Vec<u8>>, StoreError> {
        let read = move |inner: &mut Inner| {
            inner.last_read.send_replace(Some(id));
            inner.codes.get(&id).map(|(_, content)| content.clone())
        };
        Ok(self.with(read).await)
    }

    async fn copies(&self) -> Result<Vec<CodeCopy>, StoreError> {
        Ok(self.with(|inner| inner.codes.values().map(|(copy, _)| copy.clone()).collect()).await)
    }

    async fn remove(&self, copy: &CodeCopy) -> Result<(), StoreError> {
        let copy = copy.clone();
        let remove = move |inner: &mut Inner| {
            if inner.codes.get(&copy.id).is_some_and(|(there, _)| *there == copy) {
                inner.codes.remove(&copy.id);
            }
        };
        self.with(remove).await;
        Ok(())
    }
}
