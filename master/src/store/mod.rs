//! Where it is written what was asked for, and the little that must be remembered. Creating a record is the commit
//! point of a submit; everything else about a job is seen, not stored.

mod bounds;
pub mod kube;
mod reading;
pub mod sqlite;
pub mod watchers;

use async_trait::async_trait;
use protocol::failure::Restarts;
use protocol::ids::{Generation, JobName, UnixMillis};
use protocol::job::JobSpec;
use protocol::view::{JobResult, JobTimes, ReplicaView};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

pub use self::bounds::{SPEC_BYTES_MAX, json_bytes_of};

use crate::job::key::JobKey;

/// What is remembered of one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Differs from that of any other job, also of one that had the same name before.
    pub uid: String,
    /// What was asked for; never changed.
    pub spec: JobSpec,
    /// When it was accepted.
    pub accepted_at: UnixMillis,
    /// How many masters have held the job. Raised once by each that takes it over.
    pub epoch: u32,
    /// The boot id of the master that holds it.
    pub holder: String,
    /// The fingerprint of the key of its agents' tokens, where agents outlive their master: a master with another key
    /// cannot talk to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_key: Option<String>,
    /// What its user wishes now.
    pub wish: Wish,
    /// The start of the gang that was about to be made, where a member cannot say later whether it was: written
    /// before that start. Agents of ours are asked instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched: Option<Generation>,
    /// Which starts of its gang have failed, and how many were made up for.
    #[serde(default, skip_serializing_if = "Restarts::is_empty")]
    pub restarts: Restarts,
    /// How it ended; written once.
    pub ended: Option<Ended>,
}

/// What a user wishes of a job. It only ever rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// That it runs to its end.
    Run,
    /// That it ends, and is remembered.
    Cancel,
    /// That it ends, and is forgotten.
    Delete,
}

/// How a job ended, and when its steps were reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How.
    pub result: JobResult,
    /// When.
    pub times: JobTimes,
    /// The last start of its gang, if there was one.
    pub generation: Option<Generation>,
    /// Every replica, as it was then.
    pub replicas: Vec<ReplicaView>,
}

impl Ended {
    /// The times of a job that a later master finds ended: nothing is known of when its last pod was gone.
    pub fn times_of_finished(&self) -> JobTimes {
        JobTimes { finished: self.times.finished.or(self.times.ended), ..self.times.clone() }
    }
}

/// Names one state of a record. Only comparable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What is remembered.
    pub record: JobRecord,
    /// What to say to [`JobStore::update`].
    pub version: Version,
}

impl Stored {
    /// The job's name.
    pub fn name(&self) -> &JobName {
        &self.record.spec.name
    }

    /// The job, told from any other of that name.
    pub fn key(&self) -> JobKey {
        JobKey { name: self.name().clone(), uid: self.record.uid.clone() }
    }
}

/// A change that a watch reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    /// The record is now this.
    Changed(Box<Stored>),
    /// There is none of this name any more.
    Deleted(JobName),
    /// The record of this job has become unreadable. Whoever drives the job can write it anew.
    Damaged(JobKey),
    /// Every record that was there when the watch began has been told. Said once.
    Replayed,
}

/// Why a store did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A record of this name is there already.
    #[error("a job named \"{0}\" exists already")]
    Exists(JobName),
    /// There is none.
    #[error("no job is named \"{0}\"")]
    NotFound(JobName),
    /// It has changed since it was read.
    #[error("the record of job \"{0}\" has changed since it was read")]
    Conflict(JobName),
    /// One of this name is there, and is none.
    #[error("the record of job \"{}\" cannot be read: {reason}", job.name)]
    Unreadable {
        /// The job, with its uid as far as that is known; else it is empty.
        job: JobKey,
        /// Why.
        reason: String,
        /// The command that removes it.
        removal: String,
        /// What to say to [`JobStore::update`] to write the record anew.
        version: Version,
    },
    /// What stands behind the store will not take it, now or later.
    #[error("the record cannot be kept: {0}")]
    Refused(String),
    /// What stands behind the store does not answer, or not well.
    #[error("the store of records")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The time by this machine's clock.
pub fn wall_clock() -> UnixMillis {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

/// The command that removes what is a store's own and cannot be read.
fn delete_command(job: &JobName) -> String {
    format!("client delete {job}")
}

/// What a master says of a record that it cannot read, once.
const SET_ASIDE: &str = "a record is set aside, its pods are left alone, and client delete NAME removes it";

/// Where records live.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Writes a new record. The store may give the job another uid than the one it comes with; the answer has it.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when the name is taken, [`StoreError::Refused`].
    async fn create(&self, record: JobRecord) -> Result<Stored, StoreError>;

    /// Reads one; `None` when there is none.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] and [`StoreError::Unavailable`].
    async fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError>;

    /// Reads all that can be read, in the order of their names.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn list(&self) -> Result<Vec<Stored>, StoreError>;

    /// Replaces one, if it is still as it was at `version` (compare-and-swap).
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it has changed, [`StoreError::NotFound`] when it is gone, [`StoreError::Refused`].
    async fn update(&self, record: JobRecord, version: &Version) -> Result<Stored, StoreError>;

    /// Removes the record of the job with this uid. One that is absent, or another job's by now, is left alone, and
    /// that succeeds.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn delete(&self, name: &JobName, uid: &str) -> Result<(), StoreError>;

    /// Removes the record of this name that cannot be read. An absent one succeeds.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it can be read by now, [`StoreError::Unreadable`] when it is not the store's to
    /// remove, [`StoreError::Unavailable`].
    async fn discard(&self, name: &JobName) -> Result<(), StoreError>;

    /// The time by the clock that all masters of this store share, to the second. Deadlines and times to live are counted
    /// by it, so that they stay when another machine's master takes a job over.
    fn now(&self) -> UnixMillis {
        wall_clock()
    }

    /// Reports every record that can be read as it is now, then [`StoreEvent::Replayed`], then each change in order. It
    /// ends when its receiver is dropped;
    /// a receiver that does not read holds the store's writers up.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn watch(&self) -> Result<mpsc::Receiver<StoreEvent>, StoreError>;
}

/// Changes a record, reading it again as often as someone else was faster. What is written is bounded.
/// `change` says whether there is anything to write.
///
/// # Errors
/// All of [`JobStore::get`] and [`JobStore::update`] but [`StoreError::Conflict`].
pub async fn amend(
    store: &dyn JobStore,
    name: &JobName,
    change: impl Fn(&mut JobRecord) -> Change,
) -> Result<Stored, StoreError> {
    loop {
        let stored = store.get(name).await?.ok_or_else(|| StoreError::NotFound(name.clone()))?;
        let mut record = stored.record.clone();
        match change(&mut record) {
            Change::Nothing => return Ok(stored),
            Change::Write => {}
        }
        match store.update(record.bounded(), &stored.version).await {
            Err(StoreError::Conflict(_)) => {}
            done => return done,
        }
    }
}

/// Whether a record must be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is as it should be.
    Nothing,
    /// It was changed.
    Write,
}
