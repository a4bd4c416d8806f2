//! The output of every replica, copied from its agent as it comes and kept here, so that it can be read by many and
//! after the pod is gone. Offsets are the agent's own, so a copy that was interrupted goes on where it stopped.

mod read;
mod tail;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bounded_log::BoundedLog;
use protocol::ids::ReplicaId;
use tokio::sync::watch;

pub use self::read::{lines, reader};

/// Bytes kept of one replica's output: the newest ones.
pub const KEPT_BYTES: NonZeroU64 = NonZeroU64::new(64 * 1024 * 1024).expect("not zero");

/// Most bytes in one [`Chunk`].
const CHUNK_BYTES: usize = 64 * 1024;

/// The output of one job's replicas.
#[derive(Debug)]
pub struct JobLogs {
    dir: PathBuf,
    replicas: BTreeMap<ReplicaId, ReplicaLog>,
}

/// The output of one replica. Cloning shares it.
#[derive(Debug, Clone)]
pub struct ReplicaLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    file: Mutex<KeptFile>,
    progress: watch::Sender<Progress>,
    /// Why not all of it is kept, since this master lives.
    incomplete: OnceLock<String>,
}

/// The file of one replica's output.
#[derive(Debug)]
enum KeptFile {
    /// It is opened when it is needed.
    Closed,
    Open(BoundedLog),
    /// It is gone, and neither those who still copy nor those who still read make it anew.
    Removed,
}

/// How far the copy of a replica's output has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The offset behind the last byte.
    pub end: u64,
    /// Whether nothing will follow.
    pub is_complete: bool,
}

/// Some consecutive bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The offset of the first, which is later than asked for when older bytes were dropped.
    pub offset: u64,
    /// The bytes; none at the end.
    pub bytes: Vec<u8>,
}

impl JobLogs {
    /// The logs of a job with these replicas, in a folder that is made when there is something to keep.
    pub fn new(dir: PathBuf, replicas: &[ReplicaId]) -> Self {
        let log = |id: &ReplicaId| (*id, ReplicaLog::new(dir.join(format!("{id}.log"))));
        Self { replicas: replicas.iter().map(log).collect(), dir }
    }

    /// One replica's.
    pub fn of(&self, replica: ReplicaId) -> Option<&ReplicaLog> {
        self.replicas.get(&replica)
    }

    /// All, in the order of the replicas.
    pub fn all(&self) -> impl Iterator<Item = (ReplicaId, &ReplicaLog)> {
        self.replicas.iter().map(|(id, log)| (*id, log))
    }

    /// Says of all that nothing will follow.
    pub fn complete(&self) {
        for log in self.replicas.values() {
            log.0.progress.send_modify(|progress| progress.is_complete = true);
            // A master keeps the output of many jobs, and may not keep as many files open.
            let mut file = log.file();
            if matches!(*file, KeptFile::Open(_)) {
                *file = KeptFile::Closed;
            }
        }
    }

    /// Removes what is kept. Those who still read see the end.
    ///
    /// # Errors
    /// When the folder cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        self.complete();
        self.replicas.values().for_each(|log| *log.file() = KeptFile::Removed);
        match std::fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

impl ReplicaLog {
    fn new(path: PathBuf) -> Self {
        let progress = watch::Sender::new(Progress { end: 0, is_complete: false });
        // What an earlier master kept counts; a file that cannot be read is met again, with its error, when it is.
        if path.exists()
            && let Ok(kept) = open(&path)
        {
            progress.send_modify(|progress| progress.end = kept.end());
        }
        Self(Arc::new(Shared { path, file: Mutex::new(KeptFile::Closed), progress, incomplete: OnceLock::new() }))
    }

    /// Keeps bytes whose first is at `offset`. What is there already is passed over; a gap is kept as a gap.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = self.with(|file| {
            if offset > file.end() {
                file.skip_to(offset)?;
            }
            let known = usize::try_from(file.end() - offset).unwrap_or(usize::MAX).min(bytes.len());
            file.append(&bytes[known..])?;
            Ok(file.end())
        })?;
        self.0.progress.send_modify(|progress| progress.end = end);
        Ok(())
    }

    /// Notes that some of it could not be kept, and why. Who reads its lines is told behind the last one.
    pub fn note_missing(&self, error: &io::Error) {
        // What was removed misses nothing.
        if !matches!(*self.file(), KeptFile::Removed) {
            self.0.incomplete.get_or_init(|| error.to_string());
        }
    }

    /// Why not all of it is kept, where that is known.
    pub fn missing(&self) -> Option<&str> {
        self.0.incomplete.get().map(String::as_str)
    }

    /// Reads from `offset`, or from the oldest byte that is still kept.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, offset: u64) -> io::Result<Chunk> {
        if self.progress().end == 0 {
            return Ok(Chunk { offset, bytes: vec![] });
        }
        let mut bytes = vec![0; CHUNK_BYTES];
        match self.with(|file| file.read(offset, &mut bytes)) {
            Ok((offset, length)) => {
                bytes.truncate(length);
                Ok(Chunk { offset, bytes })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Chunk { offset, bytes: vec![] }),
            Err(error) => Err(error),
        }
    }

    /// Where the first byte of the agent with this boot id stands: each agent counts its output from 0, and a replica
    /// gets another agent when its pod is replaced. What is found out once is written down, for a later master.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn base_of(&self, boot_id: &str) -> io::Result<u64> {
        let file = self.file();
        if matches!(*file, KeptFile::Removed) {
            return Err(removed());
        }
        let path = self.0.path.with_extension("base");
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        let newest = known.split_once(' ').filter(|(known, _)| *known == boot_id);
        if let Some(base) = newest.and_then(|(_, base)| base.trim_end().parse().ok()) {
            return Ok(base);
        }
        // Where nothing is written down, there was one agent so far.
        let base = if known.is_empty() { 0 } else { self.progress().end };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        std::fs::write(&path, format!("{boot_id} {base}\n"))?;
        Ok(base)
    }

    /// The last lines, of those that begin at `from` or behind it; fewer where they are very long, and of one that is
    /// too long alone its end behind a `…`. None when they cannot be read.
    pub fn last_lines(&self, count: usize, from: u64) -> Vec<String> {
        let begin = self.tail_offset(count as u64).unwrap_or(0).max(from);
        // There is no room for more.
        let begin = begin.max(self.progress().end.saturating_sub(tail::LAST_LINES_BYTES as u64));
        let Ok(chunk) = self.read(begin) else { return vec![] };
        tail::that_fits(&String::from_utf8_lossy(&chunk.bytes))
    }

    /// The offset at which the last `lines` lines begin.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn tail_offset(&self, lines: u64) -> io::Result<u64> {
        if self.progress().end == 0 { Ok(0) } else { self.with(|file| file.tail_offset(lines)) }
    }

    /// How far the copy is.
    pub fn progress(&self) -> Progress {
        *self.0.progress.borrow()
    }

    /// How far the copy is, and whenever that changes.
    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.0.progress.subscribe()
    }

    /// Does one short thing with the file, which is opened when it is first needed and kept open while it grows.
    fn with<T>(&self, work: impl FnOnce(&mut BoundedLog) -> io::Result<T>) -> io::Result<T> {
        let mut file = self.file();
        match &mut *file {
            KeptFile::Open(log) => work(log),
            KeptFile::Removed => Err(removed()),
            KeptFile::Closed => {
                let mut log = open(&self.0.path)?;
                let done = work(&mut log);
                if !self.progress().is_complete {
                    *file = KeptFile::Open(log);
                }
                done
            }
        }
    }

    fn file(&self) -> MutexGuard<'_, KeptFile> {
        self.0.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn removed() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the job was forgotten, and its output with it")
}

fn open(path: &Path) -> io::Result<BoundedLog> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    BoundedLog::open(path, KEPT_BYTES).map_err(io::Error::other)
}
