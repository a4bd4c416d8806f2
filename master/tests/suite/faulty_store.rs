//! A store with a bug, or with another writer. Tests check how the master reacts, or that the chaos checker finds the
//! bug.

use async_trait::async_trait;
use master::store::{JobRecord, JobStore, StoreError, StoreEvent, Stored, Version, amend};
use protocol::code::CodeId;
use protocol::ids::JobName;
use testkit::fake::FakeStore;
use tokio::sync::mpsc;

/// What is special about a [`FaultyStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// `get` panics.
    PanicInGet,
    /// `update` writes the record even if the version is outdated.
    UpdateIgnoresVersion,
    /// Each `update` meets a conflict.
    UpdateConflicts,
    /// A user pushes this code just before the master records the first restart that counts.
    PushComesFirst(CodeId),
}

/// A store in memory that is correct except for `bug`.
pub(crate) struct FaultyStore {
    pub(crate) store: FakeStore,
    pub(crate) bug: Bug,
}

#[async_trait]
impl JobStore for FaultyStore {
    async fn create(&self, record: JobRecord) -> Result<Stored, StoreError> {
        self.store.create(record).await
    }

    async fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError> {
        assert_ne!(self.bug, Bug::PanicInGet, "panics on purpose");
        self.store.get(name).await
    }

    async fn list(&self) -> Result<Vec<Stored>, StoreError> {
        self.store.list().await
    }

    async fn update(&self, record: JobRecord, version: &Version) -> Result<Stored, StoreError> {
        match self.bug {
            Bug::PanicInGet => self.store.update(record, version).await,
            Bug::UpdateConflicts => Err(StoreError::Conflict(record.spec.name.clone())),
            Bug::PushComesFirst(code) => {
                amend(&self.store, &record.spec.name, |known| {
                    if record.restarts.counted > 0 && known.pushes == 0 {
                        (known.code, known.pushes) = (Some(code), 1);
                    }
                })
                .await?;
                self.store.update(record, version).await
            }
            Bug::UpdateIgnoresVersion => {
                let name = record.spec.name.clone();
                let now = self.store.get(&name).await?.ok_or(StoreError::NotFound(name))?;
                self.store.update(record, &now.version).await
            }
        }
    }

    async fn delete(&self, name: &JobName, uid: &str) -> Result<(), StoreError> {
        self.store.delete(name, uid).await
    }

    async fn discard(&self, name: &JobName) -> Result<(), StoreError> {
        self.store.discard(name).await
    }

    async fn watch(&self) -> Result<mpsc::Receiver<StoreEvent>, StoreError> {
        self.store.watch().await
    }
}

#[tokio::test]
async fn a_change_that_meets_a_conflict_each_time_fails_after_some_attempts() {
    let store = FaultyStore { store: FakeStore::default(), bug: Bug::UpdateConflicts };
    let record = testkit::conformance::store::record("busy");
    store.create(record.clone()).await.expect("cannot create the record");
    let changed = amend(&store, &record.spec.name, |record| record.pushes += 1).await;
    assert!(matches!(changed, Err(StoreError::Unavailable(_))), "{changed:?}");
}
