//! Stores records in one SQLite file, for the back ends process and joined. A crash loses no record.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use job::key::JobKey;
use protocol::ids::JobName;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};
use tokio::sync::mpsc;
use tracing::error;

use super::reading::uid_in;
use super::watchers::Watchers;
use super::{
    JobRecord, JobStore, NotRead, StoreError, StoreEvent, Stored, Version, delete_command, set_aside, unavailable,
};
use crate::error_chain::error_chain;
use crate::mutex::Mutex;

/// A store in a file.
#[derive(Debug, Clone)]
pub struct SqliteStore(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    connection: Connection,
    watchers: Watchers,
}

/// One row for each job. The record is JSON. The first version is a random number, and each change increases it. So a
/// version of a deleted job is not a version of a later job with the same name.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS jobs (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    record  TEXT NOT NULL
) STRICT";

impl SqliteStore {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the file cannot be read or written, or is not a database.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        // Records contain the variables of jobs. SQLite gives its other files the mode of this one.
        File::options().append(true).create(true).mode(0o600).open(path).map_err(unavailable)?;
        let connection = Connection::open(path).map_err(unavailable)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(unavailable)?;
        // With FULL, a commit is on disk when the call returns, so a power failure loses no accepted submit. NORMAL is
        // faster, but a power failure may lose the newest commits (sqlite.org/pragma.html, synchronous).
        connection.pragma_update(None, "synchronous", "FULL").map_err(unavailable)?;
        connection.execute(SCHEMA, []).map_err(unavailable)?;
        Ok(Self(Arc::new(Mutex::new(Inner { connection, watchers: Watchers::default() }))))
    }

    /// Runs one operation on the file, on a thread for blocking work.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.0);
        // A panic in `work` leaves the connection usable: SQLite rolls back uncommitted changes.
        let locked = move || work(&mut inner.lock());
        tokio::task::spawn_blocking(locked).await.map_err(unavailable)?
    }
}

impl Inner {
    fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError> {
        let query = "SELECT name, version, record FROM jobs WHERE name = ?1";
        let row = self.connection.query_one(query, [name.as_str()], columns).optional().map_err(unavailable)?;
        row.map(|row| parse(name, &row)).transpose()
    }

    /// The readable records, and whether all records are readable.
    fn list(&self) -> Result<(Vec<Stored>, bool), StoreError> {
        let mut records = vec![];
        let all_readable = self.each(|stored| records.push(stored))?;
        Ok((records, all_readable))
    }

    /// Passes the readable records on, one after another. Returns whether all records are readable.
    fn each(&self, mut take: impl FnMut(Stored)) -> Result<bool, StoreError> {
        let mut query =
            self.connection.prepare("SELECT name, version, record FROM jobs ORDER BY name").map_err(unavailable)?;
        let rows = query.query_map([], columns).map_err(unavailable)?;
        let mut skipped = 0;
        for row in rows {
            let row = row.map_err(unavailable)?;
            match row.name.parse().map(|name| parse(&name, &row)) {
                Ok(Ok(stored)) => take(stored),
                Ok(Err(error)) => skip(&error, &mut skipped),
                Err(error) => skip(&error, &mut skipped),
            }
        }
        Ok(skipped == 0)
    }

    fn write(&mut self, record: JobRecord, version: i64) -> Stored {
        let stored = Stored { record, version: Version(version.to_string()) };
        self.watchers.tell(&StoreEvent::Changed(Box::new(stored.clone())));
        stored
    }
}

#[async_trait]
impl JobStore for SqliteStore {
    async fn create(&self, record: JobRecord) -> Result<Stored, StoreError> {
        self.with(move |inner| {
            let name = record.spec.name.clone();
            let text = serde_json::to_string(&record).map_err(unavailable)?;
            let insert = "INSERT INTO jobs (name, version, record) VALUES (?1, random() >> 2, ?2) RETURNING version";
            // A statement commits after its row. `query_one` runs it to its end, and so returns the error of a commit.
            match inner.connection.query_one(insert, params![name.as_str(), text], |row| row.get(0)) {
                Ok(version) => Ok(inner.write(record, version)),
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                    Err(StoreError::Exists(name))
                }
                Err(error) => Err(unavailable(error)),
            }
        })
        .await
    }

    async fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError> {
        let name = name.clone();
        self.with(move |inner| inner.get(&name)).await
    }

    async fn list(&self) -> Result<Vec<Stored>, StoreError> {
        self.with(|inner| Ok(inner.list()?.0)).await
    }

    async fn holders(&self) -> Result<Vec<String>, StoreError> {
        self.with(|inner| {
            let mut holders = vec![];
            inner.each(|stored| holders.push(stored.record.holder))?;
            Ok(holders)
        })
        .await
    }

    async fn update(&self, record: JobRecord, version: &Version) -> Result<Stored, StoreError> {
        let Version(version) = version.clone();
        self.with(move |inner| {
            let name = record.spec.name.clone();
            let text = serde_json::to_string(&record).map_err(unavailable)?;
            let update = "UPDATE jobs SET version = version + 1, record = ?3 WHERE name = ?1 AND version = ?2
                          RETURNING version";
            let query = params![name.as_str(), version.parse::<i64>().unwrap_or(-1), text];
            let now: Option<i64> =
                inner.connection.query_one(update, query, |row| row.get(0)).optional().map_err(unavailable)?;
            match now {
                Some(version) => Ok(inner.write(record, version)),
                None if inner.get(&name)?.is_some() => Err(StoreError::Conflict(name)),
                None => Err(StoreError::NotFound(name)),
            }
        })
        .await
    }

    async fn delete(&self, name: &JobName, uid: &str) -> Result<(), StoreError> {
        let (name, uid) = (name.clone(), uid.to_owned());
        self.with(move |inner| {
            // Without `json_valid`, the statement would fail if the record is not JSON.
            let delete = "DELETE FROM jobs WHERE name = ?1
                          AND CASE WHEN json_valid(record) THEN record ->> 'uid' = ?2 ELSE FALSE END";
            let rows = inner.connection.execute(delete, [name.as_str(), &uid]);
            if rows.map_err(unavailable)? > 0 {
                inner.watchers.tell(&StoreEvent::Deleted(name));
            }
            Ok(())
        })
        .await
    }

    async fn discard(&self, name: &JobName) -> Result<(), StoreError> {
        let name = name.clone();
        self.with(move |inner| {
            match inner.get(&name) {
                Ok(Some(_)) => return Err(StoreError::Conflict(name)),
                Err(StoreError::Unreadable { .. }) => {}
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            }
            inner.connection.execute("DELETE FROM jobs WHERE name = ?1", [name.as_str()]).map_err(unavailable)?;
            inner.watchers.tell(&StoreEvent::Deleted(name));
            Ok(())
        })
        .await
    }

    async fn watch(&self) -> Result<mpsc::Receiver<StoreEvent>, StoreError> {
        self.with(|inner| {
            let (present, all_readable) = inner.list()?;
            Ok(inner.watchers.add(present, all_readable))
        })
        .await
    }
}

fn skip(error: &(dyn Error + 'static), skipped: &mut usize) {
    error!(error = error_chain(error), "{}", set_aside(error));
    *skipped += 1;
}

/// A row as it is in the file. The record is bytes, because SQLite does not verify that texts are UTF-8.
struct StoredRow {
    name: String,
    version: i64,
    record: Vec<u8>,
}

fn columns(row: &Row<'_>) -> rusqlite::Result<StoredRow> {
    let bytes = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_bytes()?.to_vec());
    Ok(StoredRow { name: String::from_utf8_lossy(&bytes(0)?).into_owned(), version: row.get(1)?, record: bytes(2)? })
}

fn parse(name: &JobName, found: &StoredRow) -> Result<Stored, StoreError> {
    let version = Version(found.version.to_string());
    match JobRecord::read(name, &found.record) {
        Ok(record) => Ok(Stored { record, version }),
        Err(NotRead::OtherFormat(format)) => Err(StoreError::OtherFormat { job: name.clone(), format }),
        Err(NotRead::Invalid(reason)) => {
            let job = JobKey { name: name.clone(), uid: uid_in(&found.record) };
            let removal = delete_command(name);
            Err(StoreError::Unreadable { job, reason, removal, version })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_uses_a_wal_with_full_synchronization() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("jobs.sqlite")).unwrap();
        let inner = store.0.lock();
        let read =
            |name| inner.connection.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0));
        let full = 2; // sqlite.org/pragma.html, synchronous
        assert_eq!(read("journal_mode"), Ok("wal".to_owned().into()));
        assert_eq!(read("synchronous"), Ok(full.into()));
    }
}
