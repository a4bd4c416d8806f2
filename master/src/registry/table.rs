//! The jobs of a master by name, behind a single lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

use job::key::JobKey;
use protocol::ids::JobName;
use protocol::view::{JobList, JobState, JobView};
use tokio::sync::watch;

use super::JobHandle;
use crate::driver::ListSeq;
use crate::mutex::Mutex;
use crate::store::{Stored, Wish};

/// The jobs of a master.
pub struct JobTable {
    handles: Mutex<BTreeMap<JobName, JobHandle>>,
    /// Notified whenever a job is added, removed, or changed on record.
    arrivals: watch::Sender<()>,
    /// The number of the present list of all jobs.
    pub(super) list: ListSeq,
    /// Whether all records are readable. While a record is unreadable, the output and the code of its job look unused,
    /// so nothing is removed.
    pub(super) all_readable: AtomicBool,
}

impl JobTable {
    pub(super) fn new(list: ListSeq) -> Self {
        let (handles, arrivals) = (Mutex::default(), watch::Sender::new(()));
        Self { handles, arrivals, list, all_readable: AtomicBool::new(false) }
    }

    /// Adds a job, or gives a job that is there a new handle.
    pub(super) fn insert(&self, name: JobName, handle: JobHandle) {
        self.handles.lock().insert(name, handle);
    }

    pub(super) fn remove(&self, name: &JobName) -> Option<JobHandle> {
        self.handles.lock().remove(name)
    }

    /// Finds a job by its name.
    pub fn find(&self, name: &JobName) -> Option<JobHandle> {
        self.handles.lock().get(name).cloned()
    }

    pub(super) fn uids(&self) -> BTreeSet<String> {
        self.handles.lock().values().map(JobHandle::uid).collect()
    }

    /// Calls `pick` with each job and its record, and returns what it picks. Skips jobs without a record.
    pub(super) fn pick<T>(&self, pick: impl Fn(&JobHandle, &Stored) -> Option<T>) -> Vec<T> {
        let handles = self.handles.lock();
        handles.values().filter_map(|handle| pick(handle, handle.record.borrow().as_ref()?)).collect()
    }

    pub(super) fn announce(&self) {
        self.arrivals.send_replace(());
    }

    /// A notification whenever a job is added, removed, or changed on record.
    pub fn arrivals(&self) -> watch::Receiver<()> {
        self.arrivals.subscribe()
    }

    /// The views of all jobs, in the order of their names.
    pub fn list(&self) -> Vec<JobView> {
        self.views().iter().map(|view| view.borrow().clone()).collect()
    }

    /// The jobs of TFJobs in the cluster that nobody has asked to delete: each job with its uid, and the uid of its TFJob.
    pub(crate) fn of_objects(&self) -> Vec<(JobKey, String)> {
        self.pick(|_, stored| {
            let uid = stored.record.spec.object_uid().filter(|_| stored.record.wish != Wish::Delete)?;
            Some((stored.key(), uid.to_owned()))
        })
    }

    /// All jobs, in the order of their names, and the number of the list.
    pub fn job_list(&self) -> JobList {
        // A change after this line leads to another number. A caller that waits for the next change then asks again.
        let seq = *self.list.subscribe().borrow();
        let jobs = self.views().iter().map(|view| view.borrow().summary()).collect();
        JobList { seq, jobs }
    }

    /// The number of the list of all jobs, with a notification of each change.
    pub fn list_seq(&self) -> watch::Receiver<u64> {
        self.list.subscribe()
    }

    /// The views of all jobs. The caller reads them after the lock is free again, because long views would hold the lock
    /// for long.
    fn views(&self) -> Vec<watch::Receiver<JobView>> {
        self.handles.lock().values().map(|handle| handle.view.clone()).collect()
    }

    /// The state of each job.
    pub fn states(&self) -> Vec<JobState> {
        self.handles.lock().values().map(|handle| handle.view.borrow().state).collect()
    }
}
