//! The registry: every job of this master, and its driver. The registry follows the store's watch. So a job reaches its
//! driver in the same way after a submit and after a restart of the master.

mod apply;
mod code;
mod code_copies;
mod dry_run;
mod error;
mod finished;
mod join;
mod requests;
mod table;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use history::History;
use job::key::JobKey;
use protocol::ids::{JobName, UnixMillis};
use protocol::pause::doubled;
use protocol::stacks::ReplicaStacks;
use protocol::view::JobView;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{debug, error, info};

pub use self::apply::Applied;
use self::code_copies::CodeKeeper;
pub use self::dry_run::OldJob;
pub use self::error::JobsError;
pub use self::finished::KEPT_FINISHED;
pub use self::requests::Requests;
use self::requests::remove_output;
pub use self::table::JobTable;
use crate::agents::client::STACKS_TIMEOUT;
use crate::code::CodeStore;
use crate::driver::{
    self, Channels, Context, Kept, ListSeq, STACKS_LIMIT, StacksRequest, Staging, Stop, Tenure, ViewSender,
};
use crate::logs::Archive;
use crate::store::{JobRecord, StoreError, StoreEvent, Stored};
use crate::tally::Tally;
use crate::turns::Turns;

/// Pause before a job gets a new driver after its first driver panicked. The pause doubles each time a driver panics,
/// because the cause may still exist.
const BROKEN_PAUSE: Duration = Duration::from_millis(500);
const BROKEN_PAUSE_MAX: Duration = Duration::from_secs(256);

/// The parts of a job that other tasks read or notify.
#[derive(Debug, Clone)]
pub struct JobHandle {
    /// The current view of the job, with a notification of each change.
    pub view: watch::Receiver<JobView>,
    /// What this master keeps of the job.
    pub kept: Kept,
    record: watch::Sender<Option<Stored>>,
    damaged: Arc<Notify>,
    surplus: Arc<Notify>,
    stagings: mpsc::Sender<Staging>,
    stacks: mpsc::Sender<StacksRequest>,
    /// How many drivers of the job have panicked.
    broken: u32,
}

/// The drivers of all jobs, by their tasks.
#[derive(Default)]
struct Drivers {
    tasks: JoinSet<Stop>,
    /// The job of each task, by the task's id.
    jobs: HashMap<Id, JobKey>,
    /// The tasks that remove unused code and delete old finished jobs. They begin when every job on record is in the
    /// registry.
    sweepers: Vec<AbortOnDropHandle<()>>,
}

/// The outcome of a submit.
#[derive(Debug)]
pub enum Submitted {
    /// The job is new.
    Created(JobHandle),
    /// The same job was submitted before.
    Existing(JobHandle),
}

/// The registry.
pub struct Jobs {
    context: Arc<Context>,
    archive: Arc<Archive>,
    /// Maximum number of finished jobs.
    kept_finished: usize,
    /// The jobs.
    pub table: Arc<JobTable>,
    /// The code of the jobs.
    pub(crate) code_keeper: Arc<CodeKeeper>,
    /// The requests of users and machines.
    pub requests: Requests,
    /// Whether every job on record is in the registry.
    is_complete: watch::Sender<bool>,
    /// Tasks that remove output.
    removals: TaskTracker,
    /// Which gangs may create pods now.
    turns: Turns,
}

impl Jobs {
    /// An empty registry that keeps the jobs' output in `archive`, and at most `kept_finished` finished jobs.
    pub fn new(context: Arc<Context>, archive: Archive, kept_finished: usize) -> Arc<Self> {
        let table = Arc::new(JobTable::new(ListSeq::from_millis(context.store.now().0)));
        let (archive, code_keeper) = (Arc::new(archive), Arc::new(CodeKeeper::new(&context, &table)));
        Arc::new(Self {
            requests: Requests::new(&context, &archive, &table, &code_keeper),
            context,
            archive,
            kept_finished,
            table,
            code_keeper,
            is_complete: watch::Sender::new(false),
            removals: TaskTracker::new(),
            turns: Turns::default(),
        })
    }

    /// Follows the store and drives every job. Dropping the future also stops the drivers.
    ///
    /// # Errors
    /// Fails if the store's watch cannot be opened, or ends.
    pub async fn run(self: Arc<Self>) -> Result<(), StoreError> {
        let mut events = self.context.store.watch().await?;
        let archive = Arc::clone(&self.archive);
        let _budget = AbortOnDropHandle::new(tokio::spawn(async move { archive.keep_within_budget().await }));
        let mut drivers = Drivers::default();
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event, &mut drivers),
                    None => return Err(StoreError::Unavailable("the watch of the records ended".into())),
                },
                Some(ended) = drivers.tasks.join_next_with_id() => self.take_end(&ended, &mut drivers),
            }
        }
    }

    /// Waits until every recorded job is in the registry. Before that, the master would report a job as unknown.
    pub async fn complete(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_complete.subscribe().wait_for(|is_complete| *is_complete).await;
    }

    /// Handles the end of a driver. If the driver panicked, a new driver takes over the job, as another master would.
    /// If another master has taken over the job, a new driver only waits, so that the job stays visible.
    fn take_end(&self, ended: &Result<(Id, Stop), JoinError>, drivers: &mut Drivers) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(job) = drivers.jobs.remove(&id) else { return };
        let Some(before) = self.table.find(&job.name).filter(|handle| handle.uid() == job.uid) else { return };
        let Some(stored) = before.record.borrow().clone() else { return };
        let (tenure, pause, broken) = match ended {
            // The store has no record. It may not report that, for example if it was listed again meanwhile.
            Ok((_, Stop::End | Stop::Gone)) => return self.forget(&job.name),
            Ok((_, Stop::Yield)) => (Tenure::Others, Duration::ZERO, before.broken),
            Ok((_, Stop::Broken)) | Err(_) => {
                let pause = doubled(BROKEN_PAUSE, before.broken, BROKEN_PAUSE_MAX);
                error!(job = %stored.name(), ?ended, ?pause, "a driver panicked; starting another one");
                (Tenure::Anew, pause, before.broken + 1)
            }
        };
        let shown = before.view.borrow().clone();
        let (handle, channels) = self.connect(&stored, shown, before.kept);
        self.table.insert(stored.name().clone(), JobHandle { broken, ..handle });
        self.drive(stored, (tenure, pause), channels, drivers);
    }

    /// This master takes over every job that it finds at startup. If a newer master accepts a job later, the job stays
    /// with the newer master. The newer master is replacing this master, which will soon drive no job.
    fn tenure(&self, record: &JobRecord) -> Tenure {
        let was_there = !*self.is_complete.borrow();
        if was_there || record.holder <= self.context.boot_id { Tenure::First } else { Tenure::Others }
    }

    fn drive(&self, stored: Stored, (tenure, pause): (Tenure, Duration), channels: Channels, drivers: &mut Drivers) {
        let (job, context) = (stored.key(), Arc::clone(&self.context));
        if tenure == Tenure::First && stored.record.ended.is_none() {
            channels.seat.expect();
        }
        let task = drivers.tasks.spawn(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            driver::drive(context, stored, tenure, channels).await
        });
        drivers.jobs.insert(task.id(), job);
    }

    fn take(self: &Arc<Self>, event: StoreEvent, drivers: &mut Drivers) {
        match event {
            StoreEvent::Changed(stored) => match self.table.find(stored.name()) {
                Some(handle) if handle.uid() == stored.record.uid => drop(handle.record.send_replace(Some(*stored))),
                Some(_) | None => {
                    let record = &stored.record;
                    let logs = self.archive.job(&record.uid, &record.replicas());
                    let kept = Kept { logs, series: Arc::default(), timeline: Arc::default() };
                    let folder = self.context.backend.folder(&stored.key(), &record.spec);
                    let shown = JobView { folder, ..driver::initial_view(record) };
                    let (handle, channels) = self.connect(&stored, shown, kept);
                    self.table.insert(stored.name().clone(), handle);
                    self.table.list.advance();
                    let tenure = self.tenure(record);
                    self.drive(*stored, (tenure, Duration::ZERO), channels, drivers);
                }
            },
            StoreEvent::Damaged(job) => {
                if let Some(handle) = self.table.find(&job.name).filter(|handle| handle.uid() == job.uid) {
                    handle.damaged.notify_one();
                }
            }
            StoreEvent::Deleted(name) => self.forget(&name),
            StoreEvent::AllReadable(all_readable) => self.table.all_readable.store(all_readable, Ordering::Relaxed),
            StoreEvent::Replayed { all_readable } => {
                self.is_complete.send_replace(true);
                self.turns.open();
                let keeper = tokio::spawn(Arc::clone(self).keep_newest_finished());
                drivers.sweepers.push(AbortOnDropHandle::new(keeper));
                self.table.all_readable.store(all_readable, Ordering::Relaxed);
                let sweeper = tokio::spawn(Arc::clone(&self.code_keeper).sweep_code());
                drivers.sweepers.push(AbortOnDropHandle::new(sweeper));
                if all_readable {
                    self.removals.spawn(Arc::clone(self).sweep());
                }
            }
        }
        self.table.announce();
    }

    /// Removes what is kept of jobs without a record. Their records were deleted while no master was running.
    async fn sweep(self: Arc<Self>) {
        self.archive.sweep().await;
        // These jobs are listed before those in the registry, because a new job is in the registry before it has a folder.
        let kept = self.context.backend.kept().await;
        let known = self.table.uids();
        for job in kept.iter().filter(|job| !known.contains(&job.uid)) {
            info!(job = %job.name, uid = job.uid, "removing the folder of a job without a record");
            self.context.backend.forget(job).await;
        }
    }

    /// Removes a job whose record no longer exists, and its output.
    fn forget(&self, name: &JobName) {
        let Some(handle) = self.table.remove(name) else { return };
        self.table.list.advance();
        handle.record.send_replace(None);
        // If another master deleted the record, that master removed only its own copy of the output.
        self.removals.spawn(remove_output(name.clone(), handle.kept.logs));
        debug!(job = %name, "record deleted");
        self.table.announce();
    }

    fn connect(&self, stored: &Stored, shown: JobView, kept: Kept) -> (JobHandle, Channels) {
        let (view_sender, view) = ViewSender::new(shown, self.table.list.clone());
        let (record, newest) = watch::channel(Some(stored.clone()));
        let (damaged, surplus) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (stagings, requested) = mpsc::channel(1);
        let (stacks, asked) = mpsc::channel(1);
        let channels = Channels {
            record: newest,
            damaged: Arc::clone(&damaged),
            surplus: Arc::clone(&surplus),
            stagings: requested,
            stacks: asked,
            view: view_sender,
            kept: kept.clone(),
            seat: self.turns.seat(&stored.record.uid),
        };
        (JobHandle { view, kept, record, damaged, surplus, stagings, stacks, broken: 0 }, channels)
    }

    /// The code that jobs bring.
    pub fn code(&self) -> &Arc<CodeStore> {
        &self.context.code
    }

    /// The files of jobs that have ended.
    pub fn history(&self) -> History {
        self.context.history.clone()
    }

    /// The present time, by the store's clock.
    pub fn now(&self) -> UnixMillis {
        self.context.store.now()
    }

    /// What has happened to the jobs under this master.
    pub fn tally(&self) -> &Tally {
        &self.context.tally
    }
}

impl JobHandle {
    fn uid(&self) -> String {
        self.view.borrow().uid.clone()
    }

    /// The stacks of the members of the current start. `None` if no driver answers in time, for example because another
    /// master has taken the job over.
    pub async fn stacks(&self) -> Option<Vec<ReplicaStacks>> {
        let (request, stacks) = oneshot::channel();
        let answer = async {
            self.stacks.send(request).await.ok()?;
            stacks.await.ok()
        };
        timeout(STACKS_LIMIT + STACKS_TIMEOUT, answer).await.ok().flatten()
    }
}
