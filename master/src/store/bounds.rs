//! Limits the size of a record. A ConfigMap has at most 1 MiB (core/v1 `MaxSecretSize`), so each part of a record has
//! its own limit, measured as JSON.

use std::sync::Arc;

use protocol::failure::{FailedStart, Restarts};
use protocol::view::ReplicaView;
use serde::Serialize;

use super::{Ended, Halted, JobRecord};

/// Maximum bytes of a spec. Its arguments and variables may use 512 KiB, and the pod options the rest.
pub const SPEC_BYTES_MAX: usize = 560 * 1024;
/// Maximum bytes of an [`Ended`] or a [`Halted`].
const ENDED_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of the failed starts.
const RESTARTS_BYTES_MAX: usize = 192 * 1024;
/// Maximum characters of each replica's reason, if an [`Ended`] is too long.
const REASON_CHARS_MAX: usize = 40;

impl JobRecord {
    /// The record to write after a change: with the next revision, and bounded.
    #[must_use]
    pub fn changed(mut self) -> Self {
        self.revision += 1;
        self.bounded()
    }

    /// Cuts a record to a size that every store accepts. The spec was already checked at the submit.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        bound_restarts(&mut self.restarts);
        self.ended = self.ended.map(Ended::bounded);
        // A job that has ended does not wait for code, so `ended` and `halted` share one limit.
        self.halted = if self.ended.is_none() { self.halted.map(Halted::bounded) } else { None };
        self
    }
}

impl Halted {
    /// Drops the consequences of the failure if this value is longer than [`ENDED_BYTES_MAX`].
    fn bounded(mut self) -> Self {
        if json_bytes_of(&self) > ENDED_BYTES_MAX {
            self.failed.consequences.clear();
        }
        self
    }
}

impl Ended {
    /// Shortens this value to a size that every store accepts. First, shortens each replica to the facts of its end. If
    /// that is not enough, drops all replicas. The result, with the job's failure, stays whole.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let shorten: [fn(&mut Arc<[ReplicaView]>); 2] =
            [|replicas| Arc::make_mut(replicas).iter_mut().for_each(shorten_view), |replicas| *replicas = Arc::new([])];
        for shorten in shorten {
            if json_bytes_of(&self) <= ENDED_BYTES_MAX {
                break;
            }
            shorten(&mut self.replicas);
        }
        self
    }
}

fn shorten_view(replica: &mut ReplicaView) {
    (replica.address, replica.pid, replica.started_at) = (None, None, None);
    if let Some(exit) = &mut replica.exit {
        exit.forget_output();
    }
    if let Some(reason) = &mut replica.reason {
        *reason = reason.chars().take(REASON_CHARS_MAX).collect();
    }
}

/// Shortens the failed starts in three steps, until they fit. The first step drops the consequences of all failed
/// starts but the last. The second step drops the oldest failed starts until two are left. The third step drops all
/// consequences.
fn bound_restarts(restarts: &mut Restarts) {
    let is_too_long = |restarts: &Restarts| json_bytes_of(restarts) > RESTARTS_BYTES_MAX;
    if is_too_long(restarts)
        && let Some((_, older)) = restarts.failed_starts.split_last_mut()
    {
        older.iter_mut().for_each(|failed| failed.consequences.clear());
    }
    while is_too_long(restarts) && restarts.failed_starts.len() > 2 {
        restarts.forget_oldest();
    }
    if is_too_long(restarts) {
        restarts.failed_starts.iter_mut().for_each(|FailedStart { consequences, .. }| consequences.clear());
    }
}

/// The size of a value as JSON, in bytes.
pub fn json_bytes_of(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}
