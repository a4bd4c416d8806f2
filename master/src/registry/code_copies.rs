//! Keeps the copies of code beside the records: writes a copy before the record that names it, and removes copies that no
//! unfinished job needs. See [`CodeCopies`](crate::store::CodeCopies).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use protocol::code::CodeId;
use protocol::origin::Warning;
use protocol::view::JobView;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::JobsError;
use super::error::of_store;
use super::table::JobTable;
use crate::code::{CodeError, CodeStore};
use crate::driver::Context;
use crate::error_chain::error_chain;
use crate::mutex::Mutex;
use crate::store::{CODE_COPY_BYTES_MAX, CodeCopy, CopyOutcome, JobRecord, StoreError, Stored};

/// How long a copy stays after a sweep has first seen that no unfinished job names it.
const UNNAMED_TIME: Duration = Duration::from_secs(10 * 60);
/// Like [`UNNAMED_TIME`], for code that a push has replaced. With `push --watch`, each save replaces the code.
const REPLACED_TIME: Duration = Duration::from_secs(60);
/// Minimum time until a sweep tries again to write a copy that the store has refused. Each attempt packs the code.
const REFUSED_TIME: Duration = Duration::from_secs(10 * 60);
/// Maximum time until the API server no longer counts a removed copy. The quota controller needs a moment.
const QUOTA_TIME: Duration = Duration::from_secs(8);

/// The outcome of [`CodeKeeper::keep_code`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeptCode {
    /// The copy is new.
    New(CodeCopy),
    /// There was a copy before.
    Before,
    /// The code stays on this master's disk alone. The view of a job shows why; see [`CodeKeeper::code_warning`].
    OnDisk,
    /// The code is too large for a copy, or this store of records keeps no copies.
    Never,
}

/// Checks, keeps and removes the code of jobs.
pub(crate) struct CodeKeeper {
    pub(super) context: Arc<Context>,
    pub(super) table: Arc<JobTable>,
    /// The code that only this master's disk has, although the store of records could keep a copy; and why there is no
    /// copy.
    on_disk: Mutex<BTreeMap<CodeId, String>>,
    /// The code that pushes have replaced, each with the view of its job.
    replaced: Mutex<BTreeMap<CodeId, watch::Receiver<JobView>>>,
}

impl CodeKeeper {
    pub(super) fn new(context: &Arc<Context>, table: &Arc<JobTable>) -> Self {
        let (context, table) = (Arc::clone(context), Arc::clone(table));
        Self { context, table, on_disk: Mutex::default(), replaced: Mutex::default() }
    }

    pub(super) fn code(&self) -> &Arc<CodeStore> {
        &self.context.code
    }

    /// Keeps a copy of this code beside the records, if possible. If not, the job runs nevertheless.
    ///
    /// # Errors
    /// [`JobsError::Code`] if the disk has lost the code, and [`JobsError::Store`].
    pub(super) async fn keep_code(&self, id: CodeId) -> Result<KeptCode, JobsError> {
        let Some(copies) = self.context.store.code_copies() else { return Ok(KeptCode::Never) };
        let packed = self.code().packed(id, CODE_COPY_BYTES_MAX).await.map_err(JobsError::Code)?;
        let Some(content) = packed else { return Ok(KeptCode::Never) };
        let kept = copies.keep(id, &content).await.map_err(of_store)?;
        let mut on_disk = self.on_disk.lock();
        on_disk.remove(&id);
        Ok(match kept {
            CopyOutcome::New(copy) => KeptCode::New(copy),
            CopyOutcome::Renewed(_) => KeptCode::Before,
            CopyOutcome::Not(why) => {
                warn!(code = %id, %why, "the code is on this master's disk alone");
                on_disk.insert(id, why.to_string());
                KeptCode::OnDisk
            }
        })
    }

    /// The warning about a job whose code is on this master's disk alone, although it could have a copy.
    pub(crate) fn code_warning(&self, code: Option<CodeId>) -> Option<Warning> {
        let why = self.on_disk.lock().get(&code?).cloned()?;
        let sentence =
            format!("only this master's disk has the code, so the job may need a push if the disk is lost: {why}");
        Some(Warning { path: "code".to_owned(), sentence })
    }

    /// Creates a record. If the store refuses the record, removes the copy of code that was created for it. If a quota
    /// has no room for both, removes the copy and then creates the record.
    pub(super) async fn create_record(&self, record: JobRecord, kept: KeptCode) -> Result<Stored, StoreError> {
        let store = self.context.store.as_ref();
        let created = store.create(record.clone()).await;
        let KeptCode::New(copy) = kept else { return created };
        let quota = match &created {
            // The record may exist.
            Ok(_) | Err(StoreError::Unavailable(_)) => return created,
            Err(StoreError::OverQuota(quota)) => quota.clone(),
            Err(_) => {
                self.remove_copy(&copy).await;
                return created;
            }
        };
        self.remove_copy(&copy).await;
        self.on_disk.lock().insert(copy.id, quota);
        let pauses = ExponentialBuilder::default().with_max_delay(Duration::from_secs(1)).without_max_times();
        let pauses = pauses.with_min_delay(Duration::from_millis(100)).with_total_delay(Some(QUOTA_TIME));
        let create = async || store.create(record.clone()).await;
        create.retry(pauses).when(|error| matches!(error, StoreError::OverQuota(_))).await
    }

    /// Removes a copy for which no record was written. If this fails, a sweep removes the copy later.
    pub(super) async fn remove_copy(&self, copy: &CodeCopy) {
        let Some(copies) = self.context.store.code_copies() else { return };
        if let Err(error) = copies.remove(copy).await {
            debug!(code = %copy.id, error = error_chain(&error), "could not remove a copy of code yet");
        }
    }

    /// Removes the copies that no unfinished job needs, and writes the missing copies that such a job needs.
    pub(super) async fn sweep_copies(&self, sweep: &mut Sweep) -> Result<(), StoreError> {
        let Some(copies) = self.context.store.code_copies() else { return Ok(()) };
        // Before a record is written, its copy is renewed. So if a record is written after this list, the removal of
        // the listed version fails.
        let present = copies.copies().await?;
        let named = self.named_codes();
        for id in sweep.missing(&present, &named, Instant::now()) {
            match self.keep_code(id).await {
                Ok(KeptCode::Never) => drop(sweep.never.insert(id)),
                Ok(KeptCode::New(_)) => info!(code = %id, "wrote the missing copy of code that a job needs"),
                Ok(KeptCode::OnDisk) => drop(sweep.refused.insert(id, Instant::now())),
                // The disk has lost the code too. The job waits for a push if it needs the code.
                Ok(KeptCode::Before) | Err(JobsError::Code(CodeError::Missing(_))) => {}
                Err(error) => debug!(code = %id, error = error_chain(&error), "could not write a copy of code yet"),
            }
        }
        sweep.never.retain(|id| named.contains(id));
        self.on_disk.lock().retain(|id, _| named.contains(id));
        let replaced = self.replaced_codes(&present);
        for copy in sweep.due(present, &named, &replaced, Instant::now()) {
            info!(code = %copy.id, "removing the copy of code that no unfinished job needs");
            copies.remove(&copy).await?;
            // Now there is room for another copy.
            sweep.refused.clear();
        }
        Ok(())
    }

    /// The code of the next start of each job that has not ended.
    fn named_codes(&self) -> BTreeSet<CodeId> {
        let named = |stored: &Stored| stored.record.code().filter(|_| stored.record.ended.is_none());
        self.table.pick(|_, stored| named(stored)).into_iter().collect()
    }

    /// Notes that a push has replaced this code of a job. Only sweeps read this note, and they remove it when the copy
    /// no longer exists.
    pub(super) fn note_replaced(&self, id: CodeId, job: &watch::Receiver<JobView>) {
        if self.context.store.code_copies().is_some() {
            self.replaced.lock().insert(id, job.clone());
        }
    }

    /// The code that a push has replaced, if all agents of the job run newer code.
    fn replaced_codes(&self, present: &[CodeCopy]) -> BTreeSet<CodeId> {
        let mut replaced = self.replaced.lock();
        replaced.retain(|id, _| present.iter().any(|copy| copy.id == *id));
        let runs_newer = |job: &watch::Receiver<JobView>| {
            let view = job.borrow();
            view.started_pushes >= view.pushes || view.result.is_some()
        };
        replaced.iter().filter(|(_, job)| runs_newer(job)).map(|(id, _)| *id).collect()
    }
}

/// What the sweeps of one master remember.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The copies that no unfinished job names, each with the time at which a sweep first found this version unnamed.
    unnamed: BTreeMap<CodeId, (CodeCopy, Instant)>,
    /// Named code that is too large for a copy.
    never: BTreeSet<CodeId>,
    /// Named code whose copy the store has refused, and when.
    refused: BTreeMap<CodeId, Instant>,
}

impl Sweep {
    /// The named code whose copy is missing and is to be written now.
    fn missing(&mut self, present: &[CodeCopy], named: &BTreeSet<CodeId>, now: Instant) -> Vec<CodeId> {
        self.refused.retain(|_, at| now.duration_since(*at) < REFUSED_TIME);
        let copied: BTreeSet<CodeId> = present.iter().map(|copy| copy.id).collect();
        let is_due = |id: &&CodeId| !self.never.contains(id) && !self.refused.contains_key(id);
        named.difference(&copied).filter(is_due).copied().collect()
    }

    /// The copies to remove now. A copy that was renewed counts as a new copy.
    fn due(
        &mut self,
        present: Vec<CodeCopy>,
        named: &BTreeSet<CodeId>,
        replaced: &BTreeSet<CodeId>,
        now: Instant,
    ) -> Vec<CodeCopy> {
        let before = std::mem::take(&mut self.unnamed);
        for copy in present.into_iter().filter(|copy| !named.contains(&copy.id)) {
            let since = before.get(&copy.id).filter(|(known, _)| *known == copy).map_or(now, |(_, since)| *since);
            self.unnamed.insert(copy.id, (copy, since));
        }
        let is_due = |(copy, since): &&(CodeCopy, Instant)| {
            let stays = if replaced.contains(&copy.id) { REPLACED_TIME } else { UNNAMED_TIME };
            now.duration_since(*since) >= stays
        };
        self.unnamed.values().filter(is_due).map(|(copy, _)| copy.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use protocol::code::{CodeFile, Manifest, Sha256};

    use super::*;
    use crate::store::Version;

    fn copy(content: &[u8], version: &str) -> CodeCopy {
        let file = CodeFile {
            path: "a.py".parse().unwrap(),
            sha256: Sha256::of(content),
            size: content.len() as u64,
            executable: false,
        };
        let id = Manifest::new(vec![file]).unwrap().id();
        CodeCopy { id, uid: "uid".to_owned(), version: Version(version.to_owned()) }
    }

    #[test]
    fn a_copy_is_removed_when_no_unfinished_job_has_named_this_version_for_10_minutes() {
        let (mut sweep, begin) = (Sweep::default(), Instant::now());
        let (old, renewed) = (copy(b"x", "1"), copy(b"x", "2"));
        let (named, none) = (BTreeSet::from([old.id]), BTreeSet::new());
        let mut due = |copy: &CodeCopy, named, minutes| {
            sweep.due(vec![copy.clone()], named, &none, begin + Duration::from_secs(60) * minutes)
        };
        assert_eq!(due(&old, &none, 0), []);
        assert_eq!(due(&old, &none, 9), []);
        assert_eq!(due(&old, &named, 11), [], "a named copy is removed");
        assert_eq!(due(&old, &none, 12), []);
        assert_eq!(due(&renewed, &none, 23), [], "a copy that a submit has just renewed is removed");
        assert_eq!(due(&renewed, &none, 32), []);
        assert_eq!(due(&renewed, &none, 33), [renewed]);
    }

    #[test]
    fn a_copy_that_the_store_has_refused_is_written_again_after_10_minutes() {
        let (mut sweep, begin, code) = (Sweep::default(), Instant::now(), copy(b"x", "1"));
        let (named, minute) = (BTreeSet::from([code.id]), Duration::from_secs(60));
        assert_eq!(sweep.missing(std::slice::from_ref(&code), &named, begin), []);
        assert_eq!(sweep.missing(&[], &named, begin), [code.id]);
        sweep.refused.insert(code.id, begin);
        assert_eq!(sweep.missing(&[], &named, begin + 9 * minute), []);
        assert_eq!(sweep.missing(&[], &named, begin + 10 * minute), [code.id]);
    }

    #[test]
    fn a_copy_of_replaced_code_is_removed_after_a_minute_unless_another_job_names_it() {
        let (mut sweep, begin, old) = (Sweep::default(), Instant::now(), copy(b"x", "1"));
        let (replaced, none) = (BTreeSet::from([old.id]), BTreeSet::new());
        let minute = begin + Duration::from_secs(60);
        assert_eq!(sweep.due(vec![old.clone()], &none, &replaced, begin), []);
        assert_eq!(sweep.due(vec![old.clone()], &none, &replaced, minute), std::slice::from_ref(&old));
        assert_eq!(sweep.due(vec![old.clone()], &replaced, &replaced, minute), []);
    }
}
