//! Requests of users: to submit, change, suspend, resume, end or delete a job.

use std::sync::Arc;
use std::time::Duration;

use job::key::JobKey;
use protocol::deletion::Deletion;
use protocol::dry_run::PodsOfKind;
use protocol::elastic::Workers;
use protocol::ids::{JobName, UnixMillis};
use protocol::job::JobSpec;
use protocol::patch::JobPatch;
use tokio::time::timeout;
use tracing::{info, warn};

use super::code_copies::{CodeKeeper, KeptCode};
use super::error::{JobsError, of_store};
use super::{JobHandle, JobTable, Submitted};
use crate::backend::COUNTING_LIMIT;
use crate::driver::Context;
use crate::logs::{Archive, JobLogs};
use crate::mutex::Mutex;
use crate::store::{JobRecord, SPEC_BYTES_MAX, StoreError, Stored, Wish, amend, json_bytes_of};

/// Maximum time for a recorded job to reach the registry.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for all calls of a request that writes a record. A client waits 30 s for an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(25);
/// Maximum time that a push waits for agents to receive the code. After that, the client repeats the request while the
/// delivery continues. The rest of [`WRITE_TIMEOUT`] is for the record.
const STAGING_WAIT: Duration = Duration::from_secs(15);
/// Maximum time for the last file of a count, which may be on a disk that does not answer.
const ONE_FILE: Duration = Duration::from_secs(1);

/// The requests of users and machines: each changes or creates a record, and drivers act on the records.
pub struct Requests {
    pub(super) context: Arc<Context>,
    archive: Arc<Archive>,
    pub(super) table: Arc<JobTable>,
    pub(super) code: Arc<CodeKeeper>,
}

impl Requests {
    pub(super) fn new(
        context: &Arc<Context>,
        archive: &Arc<Archive>,
        table: &Arc<JobTable>,
        code: &Arc<CodeKeeper>,
    ) -> Self {
        let (context, archive) = (Arc::clone(context), Arc::clone(archive));
        Self { context, archive, table: Arc::clone(table), code: Arc::clone(code) }
    }

    /// Accepts a job. When this function has returned, the job is on record and survives a crash.
    pub async fn submit(&self, spec: JobSpec) -> Result<Submitted, JobsError> {
        in_time(&spec.name.clone(), self.put_on_record(spec, false)).await
    }

    pub(super) async fn put_on_record(&self, spec: JobSpec, is_suspended: bool) -> Result<Submitted, JobsError> {
        let name = spec.name.clone();
        check_size(&spec)?;
        if let Some(stored) = self.context.store.get(&name).await.map_err(of_store)? {
            return self.existing(stored, &spec).await;
        }
        self.code.check_code(&spec).await?;
        let pods = self.context.backend.preview(&spec).await?;
        let now = self.context.store.now();
        let (uid, holder) = (uuid::Uuid::new_v4().to_string(), self.context.boot_id.clone());
        let mut record = JobRecord::new(spec.clone(), uid, holder, now);
        record.agent_key = self.context.agent_key.fingerprint().map(str::to_owned);
        record.priority = highest_priority(&pods);
        record.suspension.set(is_suspended, now);
        let kept = match spec.code {
            Some(code) => self.code.keep_code(code).await?,
            None => KeptCode::Never,
        };
        match self.code.create_record(record, kept).await {
            Ok(stored) => {
                self.context.tally.created.inc();
                info!(job = %stored.name(), replicas = stored.record.replicas().len(), "job accepted");
                Ok(Submitted::Created(self.arrived(&stored).await?))
            }
            // Another request has just created a job with this name.
            Err(StoreError::Exists(_)) => {
                let stored = self.context.store.get(&name).await.map_err(of_store)?;
                self.existing(stored.ok_or(JobsError::Exists(name))?, &spec).await
            }
            Err(error) => Err(of_store(error)),
        }
    }

    async fn existing(&self, stored: Stored, spec: &JobSpec) -> Result<Submitted, JobsError> {
        is_same(&stored, spec)?;
        Ok(Submitted::Existing(self.arrived(&stored).await?))
    }

    /// Waits until a recorded job is in the registry. Until then, the registry may contain an earlier job
    /// with this name.
    pub(super) async fn arrived(&self, stored: &Stored) -> Result<JobHandle, JobsError> {
        let (name, uid) = (stored.name(), &stored.record.uid);
        let mut arrivals = self.table.arrivals();
        let arrival = async {
            loop {
                if let Some(handle) = self.table.find(name).filter(|handle| handle.uid() == *uid) {
                    return Some(handle);
                }
                arrivals.changed().await.ok()?;
            }
        };
        timeout(ARRIVAL_TIMEOUT, arrival).await.ok().flatten().ok_or_else(|| JobsError::Slow(name.clone()))
    }

    /// Records a user's wish. The driver then acts on the wish. An unreadable record can only be deleted.
    ///
    /// # Errors
    /// [`JobsError::Unknown`], [`JobsError::Unreadable`], [`JobsError::OtherFormat`], [`JobsError::NotKept`],
    /// [`JobsError::Pods`], [`JobsError::Store`] and [`JobsError::Late`].
    pub async fn wish(&self, name: &JobName, wish: Wish) -> Result<(), JobsError> {
        in_time(name, self.put_wish_on_record(name, None, wish)).await
    }

    /// Records the wish to delete a job. With a `uid`, deletes only the job with this uid: a later job may have the name.
    /// Returns how many files of the scripts are deleted too.
    pub async fn delete(&self, name: &JobName, uid: Option<&str>) -> Result<Deletion, JobsError> {
        in_time(name, async {
            let written_files = self.written_files(name).await;
            self.put_wish_on_record(name, uid, Wish::Delete).await?;
            Ok(Deletion { written_files })
        })
        .await
    }

    /// The number of files that a deletion of this job removes. Too small if the disk does not answer in time, because a
    /// wrong number is better than no deletion.
    async fn written_files(&self, name: &JobName) -> u64 {
        let Some(handle) = self.table.find(name) else { return 0 };
        let job = JobKey { name: name.clone(), uid: handle.uid() };
        timeout(COUNTING_LIMIT + ONE_FILE, self.context.backend.written_files(&job)).await.unwrap_or_default()
    }

    async fn put_wish_on_record(&self, name: &JobName, uid: Option<&str>, wish: Wish) -> Result<(), JobsError> {
        let is_meant = |job: &str| uid.is_none_or(|uid| uid == job);
        let raise = |record: &mut JobRecord| {
            let has_ended = record.ended.is_some() && wish == Wish::Cancel;
            if is_meant(&record.uid) && !has_ended {
                record.wish = record.wish.max(wish);
            }
        };
        match amend(self.context.store.as_ref(), name, raise).await {
            Ok(stored) if is_meant(&stored.record.uid) => Ok(()),
            Ok(_) => Err(JobsError::Unknown(name.clone())),
            Err(StoreError::NotFound(name)) => Err(JobsError::Unknown(name)),
            Err(StoreError::Unreadable { job, .. }) if wish == Wish::Delete && is_meant(&job.uid) => {
                self.discard(&job).await
            }
            Err(error) => Err(of_store(error)),
        }
    }

    /// Changes the number of workers of an elastic job, suspends or resumes a job, or records its new code. The driver
    /// then acts on the record. Returns the changed record.
    ///
    /// # Errors
    /// [`JobsError::Spec`], [`JobsError::Over`], [`JobsError::Refused`], [`JobsError::Code`],
    /// [`JobsError::NotPushable`], [`JobsError::TakesNoCode`], [`JobsError::NotStaged`], [`JobsError::Underway`], and
    /// the errors of [`Self::wish`].
    pub async fn patch(&self, name: &JobName, patch: JobPatch) -> Result<JobRecord, JobsError> {
        self.patch_within(name, patch, STAGING_WAIT).await
    }

    /// Like [`Self::patch`]. Waits at most `wait` for agents to receive new code.
    pub async fn patch_within(&self, name: &JobName, patch: JobPatch, wait: Duration) -> Result<JobRecord, JobsError> {
        in_time(name, self.put_patch_on_record(name, patch, wait)).await
    }

    /// If the number of workers rises, checks whether the back end accepts the job with more workers. Does not report
    /// an invalid change: the later change of the record returns that error.
    async fn admit_patched(&self, name: &JobName, patch: JobPatch) -> Result<(), JobsError> {
        let Some(handle) = self.table.find(name).filter(|_| patch.scales()) else { return Ok(()) };
        let (spec, now) = {
            let view = handle.view.borrow();
            (view.spec.clone(), if view.result.is_none() { view.workers } else { None })
        };
        match spec.patched(now, patch) {
            Ok(Workers { min, max }) if now.is_some_and(|now| min > now.min || max > now.max) => {
                let spec = JobSpec { worker_num: max, worker_min: Some(min), ..JobSpec::clone(&spec) };
                Ok(self.context.backend.admit(&spec).await?)
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn put_patch_on_record(
        &self,
        name: &JobName,
        patch: JobPatch,
        wait: Duration,
    ) -> Result<JobRecord, JobsError> {
        self.admit_patched(name, patch).await?;
        let view = self.table.find(name).map(|handle| handle.view);
        let before = view.and_then(|view| Some((view.borrow().code?, view.clone())));
        let kept = self.code.prepare_push(name, patch, wait).await?;
        let refusal = Mutex::new(None);
        let now = self.context.store.now();
        let change = |record: &mut JobRecord| {
            let before = record.clone();
            if let Err(error) = patched(record, patch, now) {
                *record = before;
                *refusal.lock() = Some(error);
            }
        };
        let amended = amend(self.context.store.as_ref(), name, change).await;
        let refusal = refusal.lock().take();
        let is_refused = refusal.is_some() || matches!(amended, Err(StoreError::NotFound(_) | StoreError::Refused(_)));
        if let (KeptCode::New(copy), true) = (&kept, is_refused) {
            self.code.remove_copy(copy).await;
        }
        if let Some(error) = refusal {
            return Err(error);
        }
        match amended {
            Ok(stored) => {
                let replaced = before.filter(|(code, _)| stored.record.code() != Some(*code));
                replaced.iter().for_each(|(code, job)| self.code.note_replaced(*code, job));
                Ok(stored.record)
            }
            Err(StoreError::NotFound(name)) => Err(JobsError::Unknown(name)),
            Err(error) => Err(of_store(error)),
        }
    }

    /// Deletes the pods, the output and finally the record of a job whose record is unreadable.
    async fn discard(&self, job: &JobKey) -> Result<(), JobsError> {
        self.context.backend.delete_all(job).await.map_err(JobsError::Pods)?;
        if !job.uid.is_empty() {
            remove_output(job.name.clone(), self.archive.job(&job.uid, &[])).await;
        }
        self.context.backend.forget(job).await;
        self.context.store.discard(&job.name).await.map_err(of_store)?;
        info!(job = %job.name, "deleted an unreadable record");
        Ok(())
    }
}

/// The highest priority of these pods, as the cluster has resolved it.
fn highest_priority(pods: &[PodsOfKind]) -> i32 {
    let priority = |kind: &PodsOfKind| i32::try_from(kind.first.pointer("/spec/priority")?.as_i64()?).ok();
    pods.iter().filter_map(priority).max().unwrap_or_default()
}

/// Refuses a spec that is too large for a record.
pub(super) fn check_size(spec: &JobSpec) -> Result<(), JobsError> {
    match json_bytes_of(spec) {
        bytes if bytes > SPEC_BYTES_MAX => {
            Err(JobsError::NotKept(format!("the spec is {bytes} bytes long as JSON, above {SPEC_BYTES_MAX}")))
        }
        _ => Ok(()),
    }
}

/// Refuses a spec whose name belongs to a different job on record, or to a job that is being deleted.
pub(super) fn is_same(stored: &Stored, spec: &JobSpec) -> Result<(), JobsError> {
    if !stored.record.spec.asks_for_the_same(spec) || stored.record.wish == Wish::Delete {
        return Err(JobsError::Exists(spec.name.clone()));
    }
    Ok(())
}

/// Applies a user's change to a record. If this function returns an error, the record may have changed in part.
fn patched(record: &mut JobRecord, patch: JobPatch, now: UnixMillis) -> Result<(), JobsError> {
    if patch.scales() {
        let workers = record.spec.patched(record.desired, patch).map_err(JobsError::Spec)?;
        if record.workers() != Some(workers) {
            record.desired = Some(workers);
        }
    }
    if let Some(is_suspended) = patch.suspended {
        record.suspension.set(is_suspended, now);
    }
    let is_new = patch.code.is_some_and(|code| record.code() != Some(code));
    if is_new || patch.reload {
        record.code = patch.code.or(record.code);
        record.pushes += 1;
    }
    let name = || record.spec.name.clone();
    match (record.is_over(), patch.pushes()) {
        (false, _) => Ok(()),
        (true, false) => Err(JobsError::Over(name())),
        (true, true) => Err(JobsError::TakesNoCode(name())),
    }
}

pub(super) async fn remove_output(job: JobName, logs: Arc<JobLogs>) {
    if let Err(error) = logs.remove().await {
        warn!(%job, %error, "could not remove the job's output");
    }
}

/// Limits the time of a request.
pub(super) async fn in_time<T>(
    name: &JobName,
    work: impl Future<Output = Result<T, JobsError>>,
) -> Result<T, JobsError> {
    timeout(WRITE_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err(JobsError::Late { name: name.clone(), limit: WRITE_TIMEOUT }))
}
