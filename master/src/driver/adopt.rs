//! Taking a job over: the epoch is raised once by each master that comes to hold it, so that agents can tell the
//! newest holder from those before it.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use tracing::{error, info, warn};

use super::{Context, Driven, Wires};
use crate::backend::PodTable;
use crate::error_chain::error_chain;
use crate::job::observation::PodState;
use crate::store::{Change, JobRecord, StoreError, Stored, amend};

/// What a driver knows of those that drove the job before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenure {
    /// Only others did that had another boot id, if any.
    First,
    /// One of this master did and broke: its starts must be told from those to come, as another master's.
    Anew,
    /// A master that began later than this one does: it has taken the job over, or has accepted it.
    Others,
}

/// Returns at once for a job that is this master's to have. Another one is shown, with a sentence, and left alone until
/// it is over and none of its pods lives. `None` when the job is gone.
pub(super) async fn wait_for_another_master(
    context: &Context,
    stored: Stored,
    tenure: Tenure,
    wires: &mut Wires,
) -> Option<Stored> {
    let Some(sentence) = why_it_is_anothers(context, &stored, tenure) else { return Some(stored) };
    warn!(job = %stored.name(), "{sentence}");
    wires.view.send_modify(|view| {
        view.seq += 1;
        view.replicas.iter_mut().for_each(|replica| replica.reason = Some(sentence.clone()));
    });
    let has_ended = |now: &Option<Stored>| now.as_ref().is_none_or(|stored| stored.record.ended.is_some());
    // The registry's end is this master's.
    let ended = wires.record.wait_for(has_ended).await.ok()?.clone()?;
    let is_over = |pods: &PodTable| {
        pods.values().all(|pod| matches!(pod, PodState::Terminated { .. } | PodState::Disrupted { .. }))
    };
    context.backend.watch(&ended.key()).wait_for(is_over).await.ok()?;
    Some(ended)
}

/// Agents that know another key's token this master could only make fail.
fn why_it_is_anothers(context: &Context, stored: &Stored, tenure: Tenure) -> Option<String> {
    let keys = stored.record.agent_key.as_deref().zip(context.agent_key.fingerprint());
    match (keys.filter(|(theirs, own)| theirs != own), tenure) {
        (Some((theirs, own)), _) => Some(format!(
            "left to the master whose agent key has the fingerprint {theirs}: this one's is {own}, and the job's agents \
             would refuse it"
        )),
        (None, Tenure::Others) => Some("left to a master that was started after this one".to_owned()),
        (None, Tenure::First | Tenure::Anew) => None,
    }
}

/// Makes this master the holder.
///
/// # Errors
/// Why it does not: the job is gone, or it is another master's by now.
pub(super) async fn adopt(context: &Context, stored: Stored, tenure: Tenure) -> Result<Stored, Driven> {
    let epoch = stored.record.epoch;
    let is_held = |record: &JobRecord| {
        // A job that this master accepted is its own from the start.
        record.holder == context.boot_id && (tenure != Tenure::Anew || record.epoch > epoch)
    };
    // One that has ended needs no holder.
    if is_held(&stored.record) || stored.record.ended.is_some() {
        return Ok(stored);
    }
    let name = stored.name().clone();
    let boot_id = &context.boot_id;
    let uid = &stored.record.uid;
    // What this master was told of may be long ago. One that began later may have the job, and would not take it again
    // when this one ends.
    let is_anothers = |record: &JobRecord| record.epoch > epoch && record.holder > *boot_id && record.ended.is_none();
    let take_over = |record: &mut JobRecord| {
        if is_held(record) || is_anothers(record) || record.uid != *uid || record.ended.is_some() {
            return Change::Nothing;
        }
        record.holder.clone_from(boot_id);
        record.epoch += 1;
        Change::Write
    };
    let (store, job) = (context.store.as_ref(), &name);
    let now = persistently(|| amend(store, job, take_over)).await.filter(|now| now.record.uid == *uid);
    let now = now.ok_or(Driven::ToItsEnd)?;
    let epoch = now.record.epoch;
    if is_anothers(&now.record) {
        info!(job = %name, epoch, "a master that was started after this one has taken the job over");
        return Err(Driven::Yielded);
    }
    info!(job = %name, epoch, "job taken over");
    Ok(now)
}

/// Writes to the store as often as it takes. `None` when the record is gone, or will never be taken.
pub(super) async fn persistently<W, T>(mut write: impl FnMut() -> W) -> Option<T>
where
    W: Future<Output = Result<T, StoreError>>,
{
    let patience = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(5))
        .without_max_times()
        .with_jitter();
    let attempt = || {
        let writing = write();
        async {
            match writing.await {
                Ok(written) => Ok(Some(written)),
                Err(StoreError::NotFound(_)) => Ok(None),
                Err(error) => Err(error),
            }
        }
    };
    let told = |error: &StoreError, _| warn!(error = error_chain(error), "a record cannot be written yet");
    let may_pass = |error: &StoreError| !matches!(error, StoreError::Refused(_));
    let given_up = |error: StoreError| error!(error = error_chain(&error), "a record cannot be written");
    attempt.retry(patience).when(may_pass).notify(told).await.map_err(given_up).ok().flatten()
}
