//! The output of all jobs of this master, below one folder and with one disk budget. If the output exceeds the budget,
//! the output of finished jobs is dropped, beginning with the job whose last output is the oldest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use protocol::ids::ReplicaId;
use tokio::sync::Notify;
use tracing::{info, warn};
use uuid::Uuid;

use super::{JobLogs, disk};
use crate::host::files::names_in;
use crate::mutex::Mutex;

/// Default maximum bytes of kept output of all jobs.
pub const BUDGET: u64 = 10 * 1024 * 1024 * 1024;

/// The output of all jobs.
#[derive(Debug)]
pub struct Archive {
    dir: PathBuf,
    budget: u64,
    /// Whether the records of jobs outlive this folder, as in Kubernetes. Then earlier masters may have kept output in
    /// other folders.
    records_outlive_it: bool,
    /// The key is the job's uid.
    jobs: Mutex<BTreeMap<String, Weak<JobLogs>>>,
    completed: Arc<Notify>,
}

/// The disk space of one job's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutputSpace {
    pub(super) bytes: u64,
    /// When the newest of the job's files was written.
    pub(super) newest: SystemTime,
}

impl Archive {
    /// An archive with a folder below `dir` for each job. `budget` is in bytes.
    pub fn new(dir: PathBuf, budget: u64) -> Self {
        Self { dir, budget, records_outlive_it: false, jobs: Mutex::default(), completed: Arc::default() }
    }

    /// Like [`Self::new`], if the records of jobs may outlive the folder.
    pub fn outlived(dir: PathBuf, budget: u64) -> Self {
        Self { records_outlive_it: true, ..Self::new(dir, budget) }
    }

    /// The logs of the job with this uid. Accesses no file.
    pub fn job(&self, uid: &str, replicas: &[ReplicaId]) -> Arc<JobLogs> {
        let logs = JobLogs::new(self.dir.join(uid), replicas);
        let (completed, may_be_elsewhere) = (Arc::clone(&self.completed), self.records_outlive_it);
        let logs = Arc::new(JobLogs { completed, may_be_elsewhere, ..logs });
        self.jobs.lock().insert(uid.to_owned(), Arc::downgrade(&logs));
        logs
    }

    /// Removes the folders of jobs without a record. Their records were deleted while no master was running.
    pub async fn sweep(&self) {
        let dir = self.dir.clone();
        // The folders are listed before the jobs, because a new job is known before it has a folder.
        let found = match disk::run(move || names_in(&dir)).await {
            Ok(found) => found,
            Err(error) => return warn!(%error, "could not list the folders of the jobs' output"),
        };
        let known = self.live();
        // A user may keep folders with other names there.
        let unknown = found.into_iter().filter(|name| Uuid::try_parse(name).is_ok() && !known.contains_key(name));
        for uid in unknown {
            match JobLogs::new(self.dir.join(&uid), &[]).remove().await {
                Ok(()) => info!(uid, "removed the output of a job without a record"),
                Err(error) => warn!(uid, %error, "could not remove the output of a job without a record"),
            }
        }
    }

    /// Drops output whenever a job has finished and the total output exceeds the budget.
    pub async fn keep_within_budget(&self) {
        let mut finished = BTreeMap::new();
        loop {
            self.completed.notified().await;
            self.trim(&mut finished).await;
        }
    }

    /// Drops output over the budget. `finished` caches the disk space of finished jobs.
    async fn trim(&self, finished: &mut BTreeMap<String, OutputSpace>) {
        let jobs = self.live();
        finished.retain(|uid, _| jobs.contains_key(uid));
        let mut running = 0;
        for (uid, logs) in &jobs {
            if finished.contains_key(uid) {
                continue;
            }
            let is_complete = logs.is_complete();
            match logs.kept().await {
                Ok(kept) if is_complete => drop(finished.insert(uid.clone(), kept)),
                Ok(kept) => running += kept.bytes,
                // For example, a file vanished because the job is being deleted.
                Err(error) => warn!(uid, %error, "could not determine the disk space of a job's output"),
            }
        }
        for uid in to_drop(finished, running, self.budget) {
            let Some((logs, kept)) = jobs.get(&uid).zip(finished.get_mut(&uid)) else { continue };
            info!(uid, bytes = kept.bytes, "dropping a finished job's output, to stay within --log-budget");
            match logs.drop_output().await {
                Ok(()) => kept.bytes = 0,
                Err(error) => warn!(uid, %error, "could not drop a job's output"),
            }
        }
    }

    fn live(&self) -> BTreeMap<String, Arc<JobLogs>> {
        let mut jobs = self.jobs.lock();
        jobs.retain(|_, logs| logs.strong_count() > 0);
        jobs.iter().filter_map(|(uid, logs)| Some((uid.clone(), logs.upgrade()?))).collect()
    }
}

/// The finished jobs whose output must be dropped, beginning with the job whose last output is the oldest.
fn to_drop(finished: &BTreeMap<String, OutputSpace>, running: u64, budget: u64) -> Vec<String> {
    let mut total = running + finished.values().map(|kept| kept.bytes).sum::<u64>();
    let mut by_age: Vec<_> = finished.iter().filter(|(_, kept)| kept.bytes > 0).collect();
    by_age.sort_by_key(|(_, kept)| kept.newest);
    let mut dropped = vec![];
    for (uid, kept) in by_age {
        if total <= budget {
            break;
        }
        total -= kept.bytes;
        dropped.push(uid.clone());
    }
    dropped
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn output_of_the_jobs_that_finished_first_is_dropped_until_the_rest_fits() {
        let kept =
            |bytes: u64, at: u64| OutputSpace { bytes, newest: SystemTime::UNIX_EPOCH + Duration::from_secs(at) };
        let finished: BTreeMap<String, OutputSpace> =
            [("late", kept(40, 3)), ("first", kept(10, 1)), ("second", kept(30, 2)), ("gone", kept(0, 0))]
                .map(|(uid, kept)| (uid.to_owned(), kept))
                .into();
        assert_eq!(to_drop(&finished, 0, 80), [""; 0]);
        assert_eq!(to_drop(&finished, 0, 79), ["first"]);
        assert_eq!(to_drop(&finished, 1, 70), ["first", "second"]);
        assert_eq!(to_drop(&finished, 100, 80), ["first", "second", "late"]);
    }
}
