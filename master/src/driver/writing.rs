//! The driver's writes to its job's record. Each write is repeated until the store accepts it or can never accept it.
//! Without the write, the next master would repeat what this master has already done.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use tracing::{error, warn};

use super::view_sender::ViewSender;
use crate::error_chain::error_chain;
use crate::store::{AMEND_ATTEMPTS, JobRecord, JobStore, StoreError, Stored, amend};

/// First pause between two attempts, before jitter is added. The pauses double up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// From this pause on, the job's view shows why the record could not be written. Shorter failures are of no interest.
const SHOWN_PAUSE: Duration = Duration::from_secs(1);

/// The outcome of a write.
pub(super) enum Written<T> {
    /// The store has accepted the write.
    Stored(T),
    /// The record no longer exists.
    Gone,
    /// Another version of the master has written the record and holds the job.
    OtherFormat,
}

/// Repeats a write until it succeeds or can never succeed. A refused write is repeated too, because a quota or an
/// admission policy may change. Meanwhile, the job's view shows the store's reason.
pub(super) async fn persistently<W, T>(view: &ViewSender, write: impl FnMut() -> W) -> Written<T>
where
    W: Future<Output = Result<T, StoreError>>,
{
    let pauses = ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter();
    let may_succeed = |error: &StoreError| !matches!(error, StoreError::NotFound(_) | StoreError::OtherFormat { .. });
    let tell = |error: &StoreError, pause: Duration| match error {
        StoreError::Refused(reason) | StoreError::OverQuota(reason) => {
            let sentence = format!("the job waits, because the store refuses its record: {reason}");
            error!(job = %view.borrow().name, reason, "the store refused a record");
            show(view, &sentence);
        }
        StoreError::Exists(_)
        | StoreError::NotFound(_)
        | StoreError::Conflict(_)
        | StoreError::Unreadable { .. }
        | StoreError::OtherFormat { .. }
        | StoreError::Unavailable(_) => {
            let reason = error_chain(error);
            warn!(job = %view.borrow().name, error = reason, "could not write a record yet; retrying");
            if pause >= SHOWN_PAUSE {
                show(view, &format!("the job waits, because its record could not be written: {reason}"));
            }
        }
    };
    match write.retry(pauses).when(may_succeed).notify(tell).await {
        Ok(stored) => Written::Stored(stored),
        Err(StoreError::OtherFormat { .. }) => Written::OtherFormat,
        // This error is `NotFound`: all other errors lead to another attempt.
        Err(_) => Written::Gone,
    }
}

/// Shows a sentence as the reason of every replica, until the driver publishes its next view.
pub(super) fn show(view: &ViewSender, sentence: &str) {
    view.send_if_modified(|view| {
        let is_shown = view.replicas.iter().all(|replica| replica.reason.as_deref() == Some(sentence));
        if !is_shown {
            view.seq += 1;
            view.replicas_mut().iter_mut().for_each(|replica| replica.reason = Some(sentence.to_owned()));
        }
        !is_shown
    });
}

/// Changes a record like [`amend`], but first tries to write without reading, as if `known` were still stored. If
/// somebody has damaged the record, rewrites it from `known`.
pub(super) async fn amend_or_mend(
    store: &dyn JobStore,
    known: &Stored,
    change: impl Fn(&mut JobRecord),
) -> Result<Stored, StoreError> {
    let JobRecord { uid, spec, .. } = &known.record;
    let mut record = known.record.clone();
    change(&mut record);
    if record != known.record {
        match store.update(record.changed(), &known.version).await {
            Err(StoreError::Conflict(_) | StoreError::Unreadable { .. }) => {}
            done => return done,
        }
    }
    for _ in 0..AMEND_ATTEMPTS {
        let version = match amend(store, &spec.name, &change).await {
            Err(StoreError::Unreadable { job, reason, version, .. }) if job.uid.is_empty() || job.uid == *uid => {
                error!(job = %spec.name, reason, "the record was damaged; writing it again");
                version
            }
            // Another job has taken the name.
            Err(StoreError::Unreadable { job, .. }) => return Err(StoreError::NotFound(job.name)),
            done => return done,
        };
        let mut record = known.record.clone();
        change(&mut record);
        match store.update(record.changed(), &version).await {
            Err(StoreError::Conflict(_)) => {}
            done => return done,
        }
    }
    Err(StoreError::Conflict(spec.name.clone()))
}
