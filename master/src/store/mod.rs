//! Stores one record for each job: its spec, and the few facts that a later master cannot observe. A submit is accepted
//! when its record is created. Everything else about a job is observed, not stored.

pub(crate) mod boot_id;
mod bounds;
mod code_copies;
mod halted;
pub mod kube;
mod reading;
mod record;
pub mod sqlite;
mod suspension;
pub mod watchers;

use async_trait::async_trait;
use job::key::JobKey;
use protocol::ids::{JobName, UnixMillis};
use tokio::sync::mpsc;

pub use self::bounds::{SPEC_BYTES_MAX, json_bytes_of};
pub use self::code_copies::{CODE_COPIES_BYTES_MAX, CODE_COPY_BYTES_MAX, CodeCopies, CodeCopy, CopyOutcome, Unkept};
pub use self::halted::Halted;
pub use self::reading::NotRead;
pub use self::record::{Ended, FORMAT, FORMAT_OF_SEVERAL, JobRecord, Wish};
pub use self::suspension::Suspension;

/// One version of a record. Versions can only be compared for equality.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// A record and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The record.
    pub record: JobRecord,
    /// The version to pass to [`JobStore::update`].
    pub version: Version,
}

impl Stored {
    /// The job's name.
    pub fn name(&self) -> &JobName {
        &self.record.spec.name
    }

    /// The job's name and uid.
    pub fn key(&self) -> JobKey {
        JobKey { name: self.name().clone(), uid: self.record.uid.clone() }
    }
}

/// A change that a watch reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    /// The record has this content now.
    Changed(Box<Stored>),
    /// No record has this name any more.
    Deleted(JobName),
    /// The record of this job has become unreadable. The master that drives the job can write the record again.
    Damaged(JobKey),
    /// The watch has reported every readable record that existed when the watch began. Sent once.
    Replayed {
        /// Whether all records were readable.
        all_readable: bool,
    },
    /// Whether all records are readable now. Sent after [`StoreEvent::Replayed`], at each change.
    AllReadable(bool),
}

/// Why a request to a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A record with this name exists.
    #[error("a job named \"{0}\" exists already")]
    Exists(JobName),
    /// No record has this name.
    #[error("no job is named \"{0}\"")]
    NotFound(JobName),
    /// The record has changed since the caller read it.
    #[error("the record of job \"{0}\" has changed since it was read")]
    Conflict(JobName),
    /// A record with this name exists and is unreadable.
    #[error("the record of job \"{}\" cannot be read: {reason}", job.name)]
    Unreadable {
        /// The job. The uid is empty if it cannot be read.
        job: JobKey,
        /// Why the record is unreadable.
        reason: String,
        /// The command that removes the record.
        removal: String,
        /// The version to pass to [`JobStore::update`] to write the record again.
        version: Version,
    },
    /// Another version of the master wrote the record. This version does not change it.
    #[error(
        "another version of the master wrote the record of job \"{job}\", in format {format}; this version supports \
         formats {FORMAT} and {FORMAT_OF_SEVERAL}"
    )]
    OtherFormat {
        /// The job.
        job: JobName,
        /// The format of the record.
        format: u32,
    },
    /// The database or the API refuses the record. A retry fails too, until the rules of the database or API change.
    #[error("the store refused the record: {0}")]
    Refused(String),
    /// A quota has no room for the record at present.
    #[error("a quota has no room for the record: {0}")]
    OverQuota(String),
    /// The database or the API does not answer, or answers with an error.
    #[error("the store of records failed")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The error of a database or an API that does not work.
fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

/// The command with which a user removes an unreadable record.
fn delete_command(job: &JobName) -> String {
    format!("client delete {job}")
}

/// The log message about a record that was not read.
fn set_aside(error: &(dyn std::error::Error + 'static)) -> &'static str {
    match error.downcast_ref() {
        Some(StoreError::OtherFormat { .. }) => "ignored a record that another version of the master wrote",
        Some(_) | None => "ignored an unreadable record and its pods; client delete NAME removes both",
    }
}

/// A store of records.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Writes a new record. The store may replace the uid; the returned record has the final uid.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the name is taken, [`StoreError::Refused`], [`StoreError::OverQuota`] and
    /// [`StoreError::Unavailable`].
    async fn create(&self, record: JobRecord) -> Result<Stored, StoreError>;

    /// Reads a record. `None` if no record has this name.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`], [`StoreError::OtherFormat`] and [`StoreError::Unavailable`].
    async fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError>;

    /// Reads all readable records, in the order of their names.
    async fn list(&self) -> Result<Vec<Stored>, StoreError>;

    /// The field `holder` of all readable records. A store that can read one record after another does not keep all
    /// records in memory.
    async fn holders(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.list().await?.into_iter().map(|stored| stored.record.holder).collect())
    }

    /// Replaces a record if it still has this `version` (compare-and-swap).
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if the record has changed, [`StoreError::NotFound`] if no record has this name, and the
    /// other errors of [`JobStore::create`] and [`JobStore::get`].
    async fn update(&self, record: JobRecord, version: &Version) -> Result<Stored, StoreError>;

    /// Removes the record of the job with this uid. Succeeds without a change if no record has this name, or if the
    /// record belongs to another job by now.
    async fn delete(&self, name: &JobName, uid: &str) -> Result<(), StoreError>;

    /// Removes the unreadable record with this name. Succeeds if no record has this name.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if the record is readable by now, [`StoreError::Unreadable`] if the store may not
    /// remove it, [`StoreError::Unavailable`].
    async fn discard(&self, name: &JobName) -> Result<(), StoreError>;

    /// The time by the clock that all masters of this store share, accurate to about a second. Deadlines and times to
    /// live use this clock, so they stay the same after a takeover by a master on another machine.
    fn now(&self) -> UnixMillis {
        crate::host::clock::wall_clock()
    }

    /// The copies of code beside the records. `None` if the records are on the master's disk, beside the code itself.
    fn code_copies(&self) -> Option<&dyn CodeCopies> {
        None
    }

    /// Reports every readable record, then [`StoreEvent::Replayed`], then each change in order. The watch ends when its
    /// receiver is dropped. A receiver that does not read may block the store's writers.
    async fn watch(&self) -> Result<mpsc::Receiver<StoreEvent>, StoreError>;
}

/// How often to change a record at once if each write meets a conflict. An admission webhook may answer with the same
/// status as a conflict, and then every write meets one.
pub(crate) const AMEND_ATTEMPTS: u32 = 5;

/// Changes a record with compare-and-swap, and tries again a few times after a conflict. Writes the record only if `change`
/// changes it. Cuts a changed record to its maximum size.
///
/// # Errors
/// All of [`JobStore::get`] and [`JobStore::update`] except [`StoreError::Conflict`].
pub async fn amend(
    store: &dyn JobStore,
    name: &JobName,
    change: impl Fn(&mut JobRecord),
) -> Result<Stored, StoreError> {
    for _ in 0..AMEND_ATTEMPTS {
        let stored = store.get(name).await?.ok_or_else(|| StoreError::NotFound(name.clone()))?;
        let mut record = stored.record.clone();
        change(&mut record);
        if record == stored.record {
            return Ok(stored);
        }
        match store.update(record.changed(), &stored.version).await {
            Err(StoreError::Conflict(_)) => {}
            done => return done,
        }
    }
    Err(unavailable(StoreError::Conflict(name.clone())))
}
