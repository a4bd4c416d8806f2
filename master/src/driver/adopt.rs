//! Takes over a job. Each new holder raises the epoch once, so that agents can distinguish the newest holder from
//! earlier holders.

use std::time::Duration;

use job::observation::Pod;
use job::phase::{Halt, Known};
use job::policy::Policy;
use protocol::ids::{Generation, UnixMillis};
use protocol::view::{JobResult, JobTimes};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use super::view_sender::ViewSender;
use super::writing::{Written, amend_or_mend, persistently, show};
use super::{Channels, Context, Stop, tasks};
use crate::backend::PodTable;
use crate::store::{Ended, JobRecord, StoreError, Stored, Wish};

/// When a user asks to end a job of another master, that master has the pods' grace period plus this time to act. After
/// that, this master ends the job, and waits for at most this time until the pods have ended.
const HEED_TIMEOUT: Duration = Duration::from_secs(30);

/// Which masters and drivers held a job before this driver, or hold the job now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenure {
    /// No driver of this master has held the job. Other masters may have held it.
    First,
    /// An earlier driver of this master held the job and panicked. This driver raises the epoch, as in a takeover.
    Anew,
    /// Another master holds the job. That master was started after this master, and accepted the job or took it over.
    Others,
}

/// If this master may hold the job, returns at once. Otherwise shows the reason in the view, and waits until the job
/// has ended and none of its pods is alive. If the other master ignores a request to end the job, ends the job.
/// Returns `None` if the job no longer exists, or if this master shuts down.
pub(super) async fn wait_for_another_master(
    context: &Context,
    stored: Stored,
    tenure: Tenure,
    channels: &Channels,
) -> Option<Stored> {
    let Some(sentence) = why_it_is_anothers(context, &stored, tenure) else { return Some(stored) };
    warn!(job = %stored.name(), "{sentence}");
    channels.seat.leave();
    show(&channels.view, &sentence);
    let patience = Duration::from_secs(stored.record.spec.pod.termination_grace_seconds().into()) + HEED_TIMEOUT;
    let mut record = channels.record.clone();
    tokio::select! {
        over = over(context, channels) => over,
        unheeded = unheeded(&mut record, patience) => {
            let unheeded = unheeded?;
            // If a master of another version has changed the record's format, this master must not end the job.
            match context.store.get(unheeded.name()).await {
                Err(StoreError::OtherFormat { .. }) => over(context, channels).await,
                Ok(_) | Err(_) => end_for_another_master(context, unheeded, channels).await,
            }
        }
    }
}

/// Waits until a job has ended and none of its pods is alive.
async fn over(context: &Context, channels: &Channels) -> Option<Stored> {
    let has_ended = |now: &Option<Stored>| now.as_ref().is_none_or(|stored| stored.record.ended.is_some());
    // The channel closes only when this master shuts down.
    let ended = channels.record.clone().wait_for(has_ended).await.ok()?.clone()?;
    context.backend.watch(&ended.key()).wait_for(none_lives).await.ok()?;
    Some(ended)
}

fn none_lives(pods: &PodTable) -> bool {
    pods.values().all(Pod::has_ended)
}

/// Waits until the record contains a request to end the job and has not changed for `patience`.
async fn unheeded(record: &mut watch::Receiver<Option<Stored>>, patience: Duration) -> Option<Stored> {
    loop {
        let now = record.borrow_and_update().clone()?;
        let changed = record.changed();
        let outcome =
            if now.record.wish >= Wish::Cancel { timeout(patience, changed).await } else { Ok(changed.await) };
        match outcome {
            Err(_) => return Some(now),
            Ok(changed) => changed.ok()?,
        }
    }
}

/// Ends a job whose master has ignored the request to end it. Deletes the pods instead of asking the agents, because
/// the agents may refuse this master's token.
async fn end_for_another_master(context: &Context, stored: Stored, channels: &Channels) -> Option<Stored> {
    let sentence =
        "the job's pods were deleted, because the master that drives the job did not act on the request to end the job";
    warn!(job = %stored.name(), "{sentence}");
    show(&channels.view, sentence);
    let job = stored.key();
    tasks::delete_all(context.backend.as_ref(), &job).await;
    // A pod on a dead node may stay listed, so the wait is limited.
    let _ = timeout(HEED_TIMEOUT, context.backend.watch(&job).wait_for(none_lives)).await;
    let (uid, replicas) = (&stored.record.uid, channels.view.borrow().replicas.clone());
    let (accepted, ended) = (Some(stored.record.accepted_at), Some(context.store.now()));
    let times = JobTimes { accepted, ended, ..JobTimes::default() };
    let ended = Ended { result: JobResult::Cancelled, times, generation: None, roster: vec![], replicas };
    let end = |record: &mut JobRecord| {
        if record.uid == *uid && record.ended.is_none() {
            record.epoch += 1;
            record.holder.clone_from(&context.boot_id);
            record.ended = Some(ended.clone());
        }
    };
    match persistently(&channels.view, || amend_or_mend(context.store.as_ref(), &stored, end)).await {
        Written::Stored(now) if now.record.uid == *uid => Some(now),
        Written::Stored(_) | Written::Gone | Written::OtherFormat => None,
    }
}

/// Why this master must leave the job to another master; `None` if this master may hold the job.
fn why_it_is_anothers(context: &Context, stored: &Stored, tenure: Tenure) -> Option<String> {
    match (context.foreign_key(&stored.record), tenure) {
        (Some((theirs, own)), _) => Some(format!(
            "the job is left to the master whose agent key has the fingerprint {theirs}: this master's key has the \
             fingerprint {own}, and the job's agents would refuse this master's token"
        )),
        (None, Tenure::Others) => Some("the job is left to a master that was started after this one".to_owned()),
        (None, Tenure::First | Tenure::Anew) => None,
    }
}

/// Makes this master the holder.
///
/// # Errors
/// Fails if the job no longer exists, or if a newer master or another version of Muster has taken it over.
pub(super) async fn adopt(
    context: &Context,
    stored: Stored,
    tenure: Tenure,
    view: &ViewSender,
) -> Result<Stored, Stop> {
    let epoch = stored.record.epoch;
    let is_held = |record: &JobRecord| {
        // A record that this master has created names this master as the holder from the beginning.
        record.holder == context.boot_id && (tenure != Tenure::Anew || record.epoch > epoch)
    };
    // A job that has ended needs no holder.
    if is_held(&stored.record) || stored.record.ended.is_some() {
        return Ok(stored);
    }
    let name = stored.name().clone();
    let boot_id = &context.boot_id;
    let uid = &stored.record.uid;
    // `stored` may be out of date. If a newer master has taken over the job meanwhile, leave the job to that master. If
    // this master took the job back, the newer master would wait for the job's end, even after this master ends.
    let is_anothers = |record: &JobRecord| record.epoch > epoch && record.holder > *boot_id && record.ended.is_none();
    let take_over = |record: &mut JobRecord| {
        if !is_held(record) && !is_anothers(record) && record.uid == *uid && record.ended.is_none() {
            record.holder.clone_from(boot_id);
            record.epoch += 1;
        }
    };
    let store = context.store.as_ref();
    let now = match persistently(view, || amend_or_mend(store, &stored, take_over)).await {
        Written::Stored(now) if now.record.uid == *uid => now,
        Written::OtherFormat => return Err(Stop::Yield),
        Written::Stored(_) | Written::Gone => return Err(Stop::Gone),
    };
    let epoch = now.record.epoch;
    if is_anothers(&now.record) {
        info!(job = %name, epoch, "a master that was started after this one has taken the job over");
        return Err(Stop::Yield);
    }
    info!(job = %name, epoch, "job taken over");
    Ok(now)
}

/// What a driver that begins at `now` learns from the record.
pub(super) fn known(record: &JobRecord, policy: &Policy, now: UnixMillis) -> Known {
    let first = Generation { epoch: record.epoch, sequence: 1 };
    let halted = record.waits_after().and_then(|halted| {
        Some(Halt {
            generation: halted.failed.generation?,
            next: first,
            failure: halted.failed.failure.clone(),
            fingerprint: halted.failed.fingerprint.clone(),
            pushes: halted.pushes,
            until: halted.left(policy.rules.retries.halt?, now),
        })
    });
    Known {
        first,
        newest_failed: record.newest_ended(),
        halted,
        result: record.ended.as_ref().map(|ended| ended.result.clone()),
    }
}

#[cfg(test)]
mod tests {
    use protocol::failure::{FailedStart, Failure, Loss};
    use protocol::job::{JobRequest, JobSpec, Strategy};
    use protocol::run_policy::{HALT_SECONDS, OnFailure, RunPolicy};

    use super::*;
    use crate::store::Halted;

    #[test]
    fn a_new_master_continues_a_halt_until_newer_code_is_on_record_and_an_ended_job_has_no_halt() {
        let run_policy = RunPolicy { on_failure: OnFailure::Wait, ..RunPolicy::default() };
        let request = JobRequest { run_policy, ..JobRequest::new("digits".parse().unwrap(), Strategy::AllReduce) };
        let spec = JobSpec::try_from(request).unwrap();
        let policy = Policy::of(&spec, Duration::ZERO, 0);
        let failure =
            Failure::ReplicaLost { replica: "worker-0".parse().unwrap(), reason: String::new(), loss: Loss::Broken };
        let generation: Option<Generation> = Some("1.3".parse().unwrap());
        let failed = FailedStart::new(generation, UnixMillis(4000), failure);
        let mut record = JobRecord::new(spec, "uid".to_owned(), "master".to_owned(), UnixMillis(0));
        let wait = Duration::from_secs(HALT_SECONDS.into());
        let waits = |record: &JobRecord, after: Duration| {
            let now = UnixMillis(5000 + u64::try_from(after.as_millis()).unwrap());
            let Known { newest_failed, halted, .. } = known(record, &policy, now);
            (newest_failed, halted.map(|halt| (halt.generation, halt.pushes, halt.until)))
        };
        assert_eq!(waits(&record, wait), (None, None));
        (record.pushes, record.halted) = (2, Some(Halted { since: UnixMillis(5000), pushes: 2, failed }));
        for (after, left) in [(Duration::ZERO, wait), (wait / 4, wait * 3 / 4), (wait * 2, Duration::ZERO)] {
            let halted = generation.map(|generation| (generation, 2, left));
            assert_eq!(waits(&record, after), (generation, halted));
        }
        let pushed = JobRecord { pushes: 3, ..record.clone() };
        assert_eq!(waits(&pushed, wait), (generation, None), "newer code did not end the halt");
        let (result, times) = (JobResult::Cancelled, JobTimes::default());
        let ended = Ended { result, times, generation, roster: vec![], replicas: vec![].into() };
        let ended = JobRecord { ended: Some(ended), ..record }.bounded();
        assert_eq!(ended.halted, None);
    }
}
