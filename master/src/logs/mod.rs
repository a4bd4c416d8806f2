//! The output of every replica, copied from its agent. Readers can also read the output after the pod was deleted.
//! An offset here is the agent's own offset plus the offset at which this agent's output begins. So an interrupted copy
//! continues where it stopped.

mod archive;
mod disk;
mod elsewhere;
mod file;
mod folder;
mod metrics;
mod pace;
mod read;
pub mod series;
mod tail;
mod thinned;
mod times;
mod usage;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bounded_log::Tail;
use bytes::Bytes;
use protocol::agent::RunStatus;
use protocol::ids::{ReplicaId, UnixMillis};
use tokio::sync::Notify;

use self::archive::OutputSpace;
pub use self::archive::{Archive, BUDGET};
use self::elsewhere::Elsewhere;
use self::file::LogFile;
use self::folder::Names;
pub use self::read::{Reading, added_after, lines, reader};
pub use self::thinned::newest;
pub use self::times::Mark;
use crate::host::files::unless_absent;
use crate::mutex::Mutex;

/// Maximum bytes kept of one replica's output. The newest bytes are kept.
pub const KEPT_BYTES: NonZeroU64 = NonZeroU64::new(64 * 1024 * 1024).expect("not zero");

/// Maximum bytes in one [`Chunk`].
const CHUNK_BYTES: usize = 64 * 1024;

/// The output of one job's replicas. Only blocking threads access the files.
#[derive(Debug)]
pub struct JobLogs {
    dir: Arc<Path>,
    /// A change of the number of workers adds replicas.
    replicas: Mutex<BTreeMap<ReplicaId, ReplicaLog>>,
    /// Notified when the output is complete.
    completed: Arc<Notify>,
    /// Notified when a replica is added, and when a replica's output is complete.
    changed: Arc<Notify>,
    elsewhere: Arc<Elsewhere>,
    /// Whether earlier masters may have kept output in other folders.
    may_be_elsewhere: bool,
}

/// The output of one replica. All clones refer to the same output.
#[derive(Debug, Clone)]
pub struct ReplicaLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Only blocking threads lock it, each for one piece of work.
    file: Mutex<LogFile>,
    progress: Mutex<CopyProgress>,
    /// Notified at each change of the progress. A `watch` channel would take ten times the memory.
    progressed: Notify,
    /// `changed` of the [`JobLogs`] to which this log belongs. Notified when this output is complete.
    job_changed: Arc<Notify>,
    /// Why the newest output could not be kept; `None` if it was kept.
    incomplete: Mutex<Option<String>>,
}

/// The progress of the copy of a replica's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyProgress {
    /// The offset after the last byte. It is 0 until [`JobLogs::load`], [`ReplicaLog::base_of`] or the first write.
    pub end: u64,
    /// Whether no further output follows.
    pub is_complete: bool,
}

/// Consecutive bytes of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The offset of the first byte. It is later than requested if the bytes in between are not kept.
    pub offset: u64,
    /// The bytes. Empty if no kept byte follows.
    pub bytes: Vec<u8>,
    /// When the bytes were printed, if the reader wants to know. The first mark may be before `offset`.
    pub marks: Vec<Mark>,
}

/// What a reader wants to know about output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The bytes.
    Bytes,
    /// The bytes, and when they were printed.
    BytesAndTimes,
}

impl JobLogs {
    /// The logs of a job with these replicas. Accesses no file: the folder is created when the first output arrives.
    pub fn new(dir: PathBuf, replicas: &[ReplicaId]) -> Self {
        let logs = Self {
            replicas: Mutex::default(),
            dir: dir.into(),
            completed: Arc::default(),
            changed: Arc::default(),
            elsewhere: Arc::default(),
            may_be_elsewhere: false,
        };
        logs.add(replicas);
        logs
    }

    /// Adds the logs of further replicas. Existing logs do not change.
    pub fn add(&self, replicas: &[ReplicaId]) {
        let mut known = self.replicas.lock();
        let is_over = !known.is_empty() && known.values().all(|log| log.progress().is_complete);
        for id in replicas {
            known.entry(*id).or_insert_with(|| {
                let names = Names::new(Arc::clone(&self.dir), *id);
                let file = LogFile::new(names, Arc::clone(&self.elsewhere));
                let log = ReplicaLog::new(file, Arc::clone(&self.changed));
                if is_over {
                    log.complete();
                }
                log
            });
        }
        self.changed.notify_waiters();
    }

    /// Adds replicas that are not known yet but have files: an elastic job may have had more workers earlier.
    pub async fn find(&self) {
        let dir = self.dir.clone();
        let found = disk::run(move || folder::replicas_in(&dir)).await.unwrap_or_default();
        self.add(&found);
    }

    /// Whether this master has no folder for the job, but another master may have one. A master creates the folder when
    /// it begins to copy output.
    async fn is_elsewhere(&self) -> bool {
        let dir = self.dir.clone();
        self.may_be_elsewhere && !disk::run(move || dir.try_exists()).await.unwrap_or(true)
    }

    /// Like [`Self::find`], for a job that has ended. `epoch` is the job's epoch, if the job was ever started. Notes
    /// whether its output is lost.
    pub async fn find_ended(&self, epoch: Option<u32>) {
        self.find().await;
        if let Some(epoch) = epoch
            && self.is_elsewhere().await
        {
            self.elsewhere.note_all_lost(epoch);
        }
    }

    /// Like [`Self::find`]. Also reads from the files how much output an earlier master has copied. `epoch` is the job's
    /// present epoch.
    pub async fn load(&self, epoch: u32) {
        if self.is_elsewhere().await {
            self.elsewhere.note_earlier_masters(epoch);
        }
        self.find().await;
        for (_, log) in self.all() {
            // If a file cannot be opened, its readers and writers get the error later.
            let _ = log.on_file(LogFile::end_and_close).await.map(|end| log.reach(end));
        }
    }

    /// The log of one replica.
    pub fn of(&self, replica: ReplicaId) -> Option<ReplicaLog> {
        self.replicas.lock().get(&replica).cloned()
    }

    /// The logs of all replicas, in their order.
    pub fn all(&self) -> Vec<(ReplicaId, ReplicaLog)> {
        self.replicas.lock().iter().map(|(id, log)| (*id, log.clone())).collect()
    }

    /// When a replica's file was last written; `None` if it has no file.
    pub async fn last_output(&self, replica: ReplicaId) -> Option<SystemTime> {
        let path = Names::new(Arc::clone(&self.dir), replica).log();
        disk::run(move || std::fs::metadata(path)?.modified()).await.ok()
    }

    /// Marks all output as complete. Closes the files, because the jobs together may have more files than a master can
    /// open.
    pub async fn complete(&self) {
        self.all().iter().for_each(|(_, log)| log.complete());
        self.with_each(LogFile::close).await;
        self.completed.notify_one();
    }

    /// Whether no further output follows.
    fn is_complete(&self) -> bool {
        self.replicas.lock().values().all(|log| log.progress().is_complete)
    }

    /// The disk space of the job's files.
    async fn kept(&self) -> io::Result<OutputSpace> {
        let dir = self.dir.clone();
        disk::run(move || folder::kept_below(&dir)).await
    }

    /// Drops all output, but keeps the offset of its end. So readers learn how many bytes were dropped.
    async fn drop_output(&self) -> io::Result<()> {
        for (_, log) in self.all() {
            log.on_file(LogFile::drop_output).await?;
        }
        Ok(())
    }

    /// Removes the output. Streams that still read this output then end.
    pub async fn remove(&self) -> io::Result<()> {
        self.complete().await;
        self.with_each(LogFile::remove).await;
        let dir = self.dir.clone();
        disk::run(move || unless_absent(std::fs::remove_dir_all(dir))).await
    }

    async fn with_each(&self, change: fn(&mut LogFile)) {
        let logs = self.all();
        // This only fails while the runtime shuts down, which closes every file.
        let _ = disk::run(move || {
            logs.iter().for_each(|(_, log)| change(&mut log.0.file.lock()));
            Ok(())
        })
        .await;
    }
}

impl ReplicaLog {
    fn new(file: LogFile, job_changed: Arc<Notify>) -> Self {
        let progress = Mutex::new(CopyProgress { end: 0, is_complete: false });
        let (file, progressed) = (Mutex::new(file), Notify::new());
        Self(Arc::new(Shared { file, progress, progressed, job_changed, incomplete: Mutex::default() }))
    }

    /// Marks the output as complete.
    pub fn complete(&self) {
        self.advance(|progress| CopyProgress { is_complete: true, ..progress });
        self.0.job_changed.notify_waiters();
    }

    /// Keeps bytes that begin at `offset` and were printed at `at`. Bytes that are already kept are skipped. If `offset`
    /// is after the end, a gap is kept there, even if `bytes` is empty.
    pub async fn append(&self, offset: u64, bytes: Bytes, at: UnixMillis) -> io::Result<()> {
        let end = self.on_file(move |file| file.append(offset, &bytes, at)).await?;
        self.reach(end);
        Ok(())
    }

    /// Notes that output currently cannot be kept, and why. Readers of lines receive the reason as the last line.
    /// [`ReplicaLog::note_kept`] clears the reason.
    pub fn note_missing(&self, error: &io::Error) {
        // Output that was removed with its job is not missing.
        if error.kind() != io::ErrorKind::NotFound {
            *self.0.incomplete.lock() = Some(error.to_string());
        }
    }

    /// Notes that output is kept again.
    pub fn note_kept(&self) {
        *self.0.incomplete.lock() = None;
    }

    /// Why the newest output could not be kept; `None` if it was kept.
    pub fn missing(&self) -> Option<String> {
        self.0.incomplete.lock().clone()
    }

    /// Reads one chunk from `offset`, or from the first kept byte after it. The chunk never extends across a gap.
    pub async fn read(&self, offset: u64) -> io::Result<Chunk> {
        self.read_wanted(offset, Wanted::Bytes).await
    }

    async fn read_with_times(&self, offset: u64) -> io::Result<Chunk> {
        self.read_wanted(offset, Wanted::BytesAndTimes).await
    }

    async fn read_wanted(&self, offset: u64, wanted: Wanted) -> io::Result<Chunk> {
        self.on_file(move |file| file.read(offset, wanted)).await
    }

    /// The beginning of the first line with a byte that was printed at or after `since`. If there is none, the offset
    /// of the end. Bytes whose time is unknown count as older.
    pub async fn offset_since(&self, since: UnixMillis) -> io::Result<u64> {
        self.on_file(move |file| file.offset_since(since)).await
    }

    /// The offset at which the output of the agent with this status begins. Each agent counts its output from 0, and
    /// a new pod of the replica has a new agent. The offset is stored for later masters.
    pub async fn base_of(&self, status: &RunStatus) -> io::Result<u64> {
        let (boot_id, told) = (status.boot_id.clone(), status.log_base);
        let start = status.membership.map_or(0, |membership| membership.start);
        let base = move |file: &mut LogFile| file.base_of(&boot_id, told, start);
        let (base, end) = self.on_file(move |file| Ok((base(file)?, file.end()?))).await?;
        self.reach(end);
        Ok(base)
    }

    /// The last `count` lines at or after `from`: fewer if they are very long, none if the file cannot be read. If even
    /// the last line is too long, returns `…` and the end of this line.
    pub async fn last_lines(&self, count: usize, from: u64) -> Vec<String> {
        let begin = self.tail_offset(count as u64).await.unwrap_or(0).max(from);
        // More bytes would not fit into the record.
        let begin = begin.max(self.progress().end.saturating_sub(tail::LAST_LINES_BYTES as u64));
        tail::that_fits(&String::from_utf8_lossy(&self.read_to_end(begin).await.unwrap_or_default()))
    }

    /// The newest bytes as text, at most `bytes`. Empty if the file cannot be read.
    pub async fn end(&self, bytes: usize) -> String {
        // The progress is unknown for a job that an earlier master has ended.
        let end = self.on_file(|file| file.end()).await.unwrap_or_default();
        let all = self.read_to_end(end.saturating_sub(bytes as u64)).await.unwrap_or_default();
        String::from_utf8_lossy(&all[all.len().saturating_sub(bytes)..]).into_owned()
    }

    /// Reads everything from `offset` on, across gaps.
    async fn read_to_end(&self, mut offset: u64) -> io::Result<Vec<u8>> {
        let mut all = vec![];
        loop {
            let chunk = self.read(offset).await?;
            if chunk.bytes.is_empty() {
                return Ok(all);
            }
            offset = chunk.offset + chunk.bytes.len() as u64;
            all.extend(chunk.bytes);
        }
    }

    /// The offset at which the last `lines` lines begin. If fewer lines are kept, the offset of the oldest byte.
    pub async fn tail_offset(&self, lines: u64) -> io::Result<u64> {
        let mut tail = Tail::Before { offset: u64::MAX, lines };
        loop {
            match tail {
                Tail::Begins(offset) => return Ok(offset),
                Tail::Before { offset, lines } => {
                    tail = self.on_file(move |file| file.tail_step(offset, lines)).await?;
                }
            }
        }
    }

    /// The progress of the copy.
    pub fn progress(&self) -> CopyProgress {
        *self.0.progress.lock()
    }

    /// Waits until the progress of the copy differs from `known`.
    pub async fn progressed_from(&self, known: CopyProgress) {
        loop {
            // A notification between this line and the await is not lost.
            let progressed = self.0.progressed.notified();
            if self.progress() != known {
                return;
            }
            progressed.await;
        }
    }

    /// Waits until the output is complete.
    pub async fn completed(&self) {
        loop {
            let known = self.progress();
            if known.is_complete {
                return;
            }
            self.progressed_from(known).await;
        }
    }

    fn reach(&self, end: u64) {
        self.advance(|progress| CopyProgress { end: progress.end.max(end), ..progress });
    }

    fn advance(&self, next: impl FnOnce(CopyProgress) -> CopyProgress) {
        let mut progress = self.0.progress.lock();
        let before = *progress;
        *progress = next(before);
        if *progress != before {
            self.0.progressed.notify_waiters();
        }
    }

    /// Runs one short piece of work on the file. The file stays open until the output is complete.
    async fn on_file<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut LogFile) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let log = self.clone();
        disk::run(move || {
            let mut file = log.0.file.lock();
            let done = work(&mut file);
            if log.progress().is_complete {
                file.close();
            }
            done
        })
        .await
    }
}
