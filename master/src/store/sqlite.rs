//! Records in one SQLite file, for the process back end: a laptop has no API server, and a crash must lose nothing.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use protocol::ids::JobName;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};
use tokio::sync::mpsc;
use tracing::error;

use super::watchers::Watchers;
use crate::error_chain::error_chain;

use super::{JobRecord, JobStore, StoreError, StoreEvent, Stored, Version};

/// A store in a file.
#[derive(Debug, Clone)]
pub struct SqliteStore(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    connection: Connection,
    watchers: Watchers,
}

/// One row a job. The record is JSON; the version counts its changes.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS jobs (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    record  TEXT NOT NULL
) STRICT";

impl SqliteStore {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it cannot be read or written, or is no database.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(path).map_err(unavailable)?;
        // With a write-ahead log a commit costs no wait for the disk, and a crash of this process loses none.
        connection.pragma_update(None, "journal_mode", "WAL").map_err(unavailable)?;
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(unavailable)?;
        connection.execute(SCHEMA, []).map_err(unavailable)?;
        Ok(Self(Arc::new(Mutex::new(Inner { connection, watchers: Watchers::default() }))))
    }

    /// Does one thing with the file, off the runtime's threads.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.0);
        // A panic in here leaves the connection whole: SQLite rolls back what was not committed.
        let locked = move || work(&mut inner.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(locked).await.map_err(unavailable)?
    }
}

impl Inner {
    fn get(&self, name: &JobName) -> Result<Option<Stored>, StoreError> {
        let query = "SELECT version, record FROM jobs WHERE name = ?1";
        let row = self.connection.query_row(query, [name.as_str()], columns).optional().map_err(unavailable)?;
        row.map(parse).transpose()
    }

    fn list(&self) -> Result<Vec<Stored>, StoreError> {
        let mut query =
            self.connection.prepare("SELECT version, record FROM jobs ORDER BY name").map_err(unavailable)?;
        let rows = query.query_map([], columns).map_err(unavailable)?;
        let mut records = vec![];
        for row in rows {
            match parse(row.map_err(unavailable)?) {
                Ok(stored) => records.push(stored),
                // One record that cannot be read is no reason to leave all the others alone.
                Err(error) => error!(error = error_chain(&error), "a record cannot be read and is passed over"),
            }
        }
        Ok(records)
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
            let insert = "INSERT INTO jobs (name, version, record) VALUES (?1, 1, ?2)";
            match inner.connection.execute(insert, params![name.as_str(), text]) {
                Ok(_) => Ok(inner.write(record, 1)),
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
        self.with(|inner| inner.list()).await
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
                inner.connection.query_row(update, query, |row| row.get(0)).optional().map_err(unavailable)?;
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
            let delete = "DELETE FROM jobs WHERE name = ?1 AND record ->> 'uid' = ?2";
            let rows = inner.connection.execute(delete, [name.as_str(), &uid]);
            if rows.map_err(unavailable)? > 0 {
                inner.watchers.tell(&StoreEvent::Deleted(name));
            }
            Ok(())
        })
        .await
    }

    async fn watch(&self) -> Result<mpsc::Receiver<StoreEvent>, StoreError> {
        self.with(|inner| {
            let present = inner.list()?;
            Ok(inner.watchers.add(present))
        })
        .await
    }
}

fn columns(row: &Row<'_>) -> rusqlite::Result<(i64, String)> {
    Ok((row.get(0)?, row.get(1)?))
}

fn parse((version, record): (i64, String)) -> Result<Stored, StoreError> {
    let record = serde_json::from_str(&record).map_err(unavailable)?;
    Ok(Stored { record, version: Version(version.to_string()) })
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}
