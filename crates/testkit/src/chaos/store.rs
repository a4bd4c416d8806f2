//! A store with faults before and after changes of a record, and before and after calls that keep or read code.

use std::sync::Arc;

use async_trait::async_trait;
use protocol::code::CodeId;
use protocol::ids::{JobName, UnixMillis};
use tokio::sync::mpsc;

use super::{Chaos, Deed, Struck};
use master::store::{CodeCopies, CodeCopy, CopyOutcome, JobRecord, JobStore, StoreError, StoreEvent, Stored, Version};

/// A store. Faults can strike before and after calls that change a record, or keep or read code.
pub struct ChaosStore {
    inner: Arc<dyn JobStore>,
    chaos: Arc<Chaos>,
}

impl ChaosStore {
    /// Wraps `inner`, so that the faults of `chaos` can strike its calls.
    pub fn new(inner: Arc<dyn JobStore>, chaos: Arc<Chaos>) -> Self {
        Self { inner, chaos }
    }

    fn inner_copies(&self) -> &dyn CodeCopies {
        self.inner.code_copies().expect("only a store with copies is asked for them")
    }
}

fn unavailable(struck: Struck) -> StoreError {
    StoreError::Unavailable(Box::new(struck))
}

#[async_trait]
impl JobStore for ChaosStore {
    async fn create(&self, record: JobRecord) -> Result<Stored, StoreError> {
        self.chaos.around(Some(Deed::Accept), self.inner.create(record), unavailable).await
    }

    async fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError> {
        self.chaos.around(None, self.inner.get(name), unavailable).await
    }

    async fn list(&self) -> Result<Vec<Stored>, StoreError> {
        self.chaos.around(None, self.inner.list(), unavailable).await
    }

    async fn update(&self, record: JobRecord, version: &Version) -> Result<Stored, StoreError> {
        let before = self.inner.get(&record.spec.name).await?;
        let deed = before.and_then(|before| Deed::of_update(&before.record, &record));
        self.chaos.around(deed, self.inner.update(record, version), unavailable).await
    }

    async fn delete(&self, name: &JobName, uid: &str) -> Result<(), StoreError> {
        self.chaos.around(Some(Deed::Forget), self.inner.delete(name, uid), unavailable).await
    }

    async fn discard(&self, name: &JobName) -> Result<(), StoreError> {
        self.chaos.around(None, self.inner.discard(name), unavailable).await
    }

    fn now(&self) -> UnixMillis {
        self.inner.now()
    }

    /// While the master is frozen or dead, the watch reports no changes.
    async fn watch(&self) -> Result<mpsc::Receiver<StoreEvent>, StoreError> {
        let mut events = self.chaos.around(None, self.inner.watch(), unavailable).await?;
        let (sender, heard) = mpsc::channel(1);
        let chaos = Arc::clone(&self.chaos);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                chaos.gate().await;
                if sender.send(event).await.is_err() {
                    return;
                }
            }
        });
        Ok(heard)
    }

    fn code_copies(&self) -> Option<&dyn CodeCopies> {
        self.inner.code_copies().map(|_| self as &dyn CodeCopies)
    }
}

#[async_trait]
impl CodeCopies for ChaosStore {
    async fn keep(&self, id: CodeId, content: &[u8]) -> Result<CopyOutcome, StoreError> {
        self.chaos.around(Some(Deed::KeepCode), self.inner_copies().keep(id, content), unavailable).await
    }

    async fn read(&self, id: CodeId) -> Result<Option<Vec<u8>>, StoreError> {
        self.chaos.around(Some(Deed::ReadCode), self.inner_copies().read(id), unavailable).await
    }

    async fn copies(&self) -> Result<Vec<CodeCopy>, StoreError> {
        self.chaos.around(None, self.inner_copies().copies(), unavailable).await
    }

    async fn remove(&self, copy: &CodeCopy) -> Result<(), StoreError> {
        self.chaos.around(None, self.inner_copies().remove(copy), unavailable).await
    }
}
