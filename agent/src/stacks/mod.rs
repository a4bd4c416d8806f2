//! The stacks of a run's Python processes, for `POST /stacks`. The agent sends each process a signal. Python's module
//! `faulthandler` then writes the stacks to the run's file. For a process without this handler, the answer says why it
//! has no stacks.

mod candidate;
mod file;
mod source;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::stacks::{Dump, ProcessStacks, Stacks, TEXT_BYTES};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use self::candidate::{Candidate, Handling, ProcessPlace, file_name};
pub(crate) use self::file::StacksFile;
use crate::process::proc::{self, Stat, family};
use crate::process::reaper::is_child;

/// Maximum number of processes in an answer.
const PROCESSES_MAX: usize = 64;
/// Minimum bytes of text for each main process and its descendants.
const TEXT_BYTES_MIN: usize = 4096;
/// A dump is complete when the file has not grown for this time.
const QUIET: Duration = Duration::from_millis(50);
/// The interval at which to look whether the file has grown.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time for the dump of one process, and of all processes.
const DUMP_LIMIT: Duration = Duration::from_millis(500);
const DUMPS_LIMIT: Duration = Duration::from_secs(1);
/// The time over which processor time is measured.
const CPU_WINDOW: Duration = Duration::from_millis(250);
/// Maximum time to read the script's files. The script itself may be waiting for their disk.
const SOURCE_LIMIT: Duration = Duration::from_millis(200);

/// What requests for stacks need.
#[derive(Debug, Clone)]
pub(crate) struct StacksOfRun {
    /// The file of each main process of the newest run; `None` if it could not be created.
    files: watch::Receiver<Vec<Option<StacksFile>>>,
    /// The newest answer. Locked while the next one is made, because only one at a time may use the files.
    newest: Arc<Mutex<Option<MadeStacks>>>,
    /// One task at a time may read the script's files, because it may wait for a dead disk for ever.
    reader: Arc<Semaphore>,
    work_dir: PathBuf,
}

/// An answer.
#[derive(Debug)]
struct MadeStacks {
    mains: Vec<MainOfRun>,
    began: Instant,
    stacks: Arc<Stacks>,
}

/// A main process that lives, and its index in the replica.
pub(crate) type MainOfRun = (usize, Pid);

impl StacksOfRun {
    pub(crate) fn new(files: watch::Receiver<Vec<Option<StacksFile>>>, work_dir: PathBuf) -> Self {
        Self { files, newest: Arc::default(), reader: Arc::new(Semaphore::new(1)), work_dir }
    }

    /// The stacks of the main processes and of their descendants, except of those that have ended. All requests that wait
    /// while an answer is made get the next answer.
    pub(crate) async fn of(&self, mains: Vec<MainOfRun>) -> Arc<Stacks> {
        let asked_at = Instant::now();
        let mut newest = self.newest.lock().await;
        if let Some(made) = newest.as_ref().filter(|made| made.mains == mains && asked_at <= made.began) {
            return Arc::clone(&made.stacks);
        }
        let began = Instant::now();
        let stacks = Arc::new(self.make(&mains, began).await);
        *newest = Some(MadeStacks { mains, began, stacks: Arc::clone(&stacks) });
        stacks
    }

    async fn make(&self, mains: &[MainOfRun], began: Instant) -> Stacks {
        // While the request waited, the run may have ended, and its number may belong to another process.
        let mains: Vec<MainOfRun> = mains.iter().copied().filter(|(_, main)| is_child(*main)).collect();
        let files = self.files.borrow().clone();
        let mut families = JoinSet::new();
        for (index, main) in &mains {
            let file = files.get(*index).cloned().flatten();
            let left = (TEXT_BYTES / 4 * 3 / mains.len()).max(TEXT_BYTES_MIN);
            let texts = Texts { file, left, until: began + DUMPS_LIMIT };
            let index = (files.len() > 1).then_some(*index);
            families.spawn(of_family(index, *main, (PROCESSES_MAX / mains.len()).max(1), texts));
        }
        let mut families = families.join_all().await;
        families.sort_by_key(|family| family.first().and_then(|(main, _)| main.process));
        sleep_until(began + CPU_WINDOW).await;
        let elapsed = began.elapsed();
        let processes =
            families.into_iter().flatten().map(|(process, stat)| measured(process, stat, elapsed)).collect();
        Stacks { processes: self.with_source(processes).await }
    }

    /// Adds the lines of the script to the dumps, if its files can be read in time.
    async fn with_source(&self, processes: Vec<ProcessStacks>) -> Vec<ProcessStacks> {
        let Ok(permit) = Arc::clone(&self.reader).try_acquire_owned() else { return processes };
        let (work_dir, mut read) = (self.work_dir.clone(), processes.clone());
        let reading = spawn_blocking(move || {
            let mut room = TEXT_BYTES / 4;
            for process in &mut read {
                if let Dump::Text(text) = &mut process.dump {
                    *text = source::with_source(text, &work_dir, &mut room);
                }
            }
            drop(permit);
            read
        });
        timeout(SOURCE_LIMIT, reading).await.ok().and_then(Result::ok).unwrap_or(processes)
    }
}

/// A main process with this index in a replica of several processes, and then its descendants, at most `count` in all.
async fn of_family(index: Option<usize>, main: Pid, count: usize, mut texts: Texts) -> Vec<(ProcessStacks, Stat)> {
    let of_main = proc::program(main);
    let index = index.and_then(|index| u32::try_from(index).ok());
    let mut processes = Vec::new();
    for (pid, stat) in family(number(main)).into_iter().take(count) {
        let Some(pid) = Pid::from_raw(pid) else { continue };
        let place = if pid == main { ProcessPlace::Main } else { ProcessPlace::Child { of: of_main.clone() } };
        let process = if pid == main { index } else { None };
        processes.push((ProcessStacks { process, ..of_process(pid, stat, place, &mut texts).await }, stat));
    }
    processes
}

/// The dumps of one main process and its descendants.
struct Texts {
    file: Option<StacksFile>,
    /// How many bytes are left for the other dumps.
    left: usize,
    /// When the last dump must be complete.
    until: Instant,
}

async fn of_process(pid: Pid, stat: Stat, place: ProcessPlace, texts: &mut Texts) -> ProcessStacks {
    let program = file_name(proc::program(pid).as_deref()).unwrap_or_default();
    let waits_in = proc::text(number(pid), "wchan").filter(|name| !name.is_empty() && name != "0");
    let dump = match texts.of(pid, stat, place).await {
        Ok(text) => Dump::Text(text),
        Err(reason) => Dump::WhyNot(reason),
    };
    ProcessStacks {
        pid: pid.as_raw_nonzero().get().unsigned_abs(),
        process: None,
        program,
        state: stat.state,
        cpu_percent: 0,
        waits_in,
        dump,
    }
}

/// The process with its processor time since `before`.
fn measured(process: ProcessStacks, before: Stat, elapsed: Duration) -> ProcessStacks {
    let now = i32::try_from(process.pid).ok().and_then(proc::stat).filter(|now| now.started == before.started);
    let cpu = now.map_or(Duration::ZERO, |now| now.cpu.saturating_sub(before.cpu));
    let percent = cpu.as_millis() * 100 / elapsed.as_millis().max(1);
    ProcessStacks { cpu_percent: u32::try_from(percent).unwrap_or(u32::MAX), ..process }
}

impl Texts {
    /// The dump of one process, or why there is none.
    async fn of(&mut self, pid: Pid, stat: Stat, place: ProcessPlace) -> Result<String, String> {
        let file = self.file.clone().ok_or("the agent could not create the file for stacks")?;
        if self.until <= Instant::now() || self.left == 0 {
            return Err("there are too many processes to ask all of them".to_owned());
        }
        file.clear().map_err(|error| format!("the file for stacks cannot be used: {error}"))?;
        ask(pid, stat, place)?;
        let limit = self.until.min(Instant::now() + DUMP_LIMIT);
        if !is_written(&file, limit).await {
            let state = proc::stat(number(pid)).map_or('X', |stat| stat.state);
            return Err(unanswered(state));
        }
        let text = file.text(self.left);
        if text.lines().filter(|line| line.starts_with("Current thread ")).count() > 1 {
            return Err("another process wrote its stacks at the same time: ask again".to_owned());
        }
        self.left -= text.len().min(self.left);
        Ok(text)
    }
}

/// Sends the signal to a process that handles it. The descriptor is opened before the process is examined, so both
/// belong to the same process. Only the agent itself reaps a main process. For other processes, a later process with
/// this id has another fork time. The handler is read last, because a process loses its handler when it starts another
/// program.
fn ask(pid: Pid, before: Stat, place: ProcessPlace) -> Result<(), String> {
    let descriptor = pidfd_open(pid, PidfdFlags::empty());
    let is_main = matches!(place, ProcessPlace::Main);
    let program = proc::program(pid);
    let state = proc::stat(number(pid)).filter(|now| now.started == before.started).map_or('X', |now| now.state);
    let status = proc::text(number(pid), "status").unwrap_or_default();
    let candidate = Candidate { program, state, handling: Handling::in_status(&status), age: before.age(), place };
    if let Some(reason) = candidate.why_not() {
        return Err(reason);
    }
    let sent = match descriptor {
        Ok(descriptor) => pidfd_send_signal(descriptor, Signal::STKFLT),
        // Linux before 5.3 has no such descriptors.
        Err(_) if is_main => kill_process(pid, Signal::STKFLT),
        Err(error) => Err(error),
    };
    debug!(pid = pid.as_raw_nonzero(), ok = sent.is_ok(), "asked a process for its stacks");
    sent.map_err(|error| format!("the signal cannot be sent: {error}"))
}

/// Waits until the dump is complete, at most until `limit`. Returns whether anything was written.
async fn is_written(file: &StacksFile, limit: Instant) -> bool {
    let (mut length, mut grown_at) = (0, Instant::now());
    while Instant::now() < limit && (length == 0 || grown_at.elapsed() < QUIET) {
        sleep(LOOK_INTERVAL).await;
        let now = file.length();
        if now != length {
            (length, grown_at) = (now, Instant::now());
        }
    }
    length > 0
}

/// Why a process with a handler has written nothing.
fn unanswered(state: char) -> String {
    let why = match state {
        'D' => ": it waits for a device or a network file system, and the kernel delivers no signals meanwhile",
        'T' | 't' => ": it is stopped",
        'X' | 'Z' => ": it has ended",
        _ => "",
    };
    format!("it did not write its stacks within {} ms{why}", DUMP_LIMIT.as_millis())
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
