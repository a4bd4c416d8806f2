//! What a driver writes to its job's record: starts, failures, halts, suspensions, and the job's end. Also deletes the
//! record.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use job::diagnosis::{Evidence, diagnose, longest_silent};
use job::gang::Gang;
use job::phase::{Halt, JobPhase, PodSelection};
use job::replica::ReplicaPhase;
use protocol::failure::{FailedStart, Failure, LAST_LINES_MAX};
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobResult;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::tracked::Replica;
use super::writing::{Written, amend_or_mend, persistently};
use super::{Driver, Next, follower};
use crate::store::{Change, Ended, Halted, JobRecord};

/// Maximum time to copy the last output of a failed replica before its last lines are read.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

impl Driver {
    /// Records that a start is about to begin. Only gangs with agents of the first prototype need this: a later master
    /// cannot ask these agents about the start.
    pub(super) async fn remember(&mut self, generation: Generation) -> Next {
        self.write(|record| {
            if record.launched == Some(generation) {
                return Change::Nothing;
            }
            record.launched = Some(generation);
            Change::Write
        })
        .await
    }

    /// Changes the record if this master still holds the job. Otherwise leaves the record unchanged.
    async fn write(&mut self, change: impl Fn(&mut JobRecord) -> Change) -> Next {
        let (uid, epoch) = (self.stored.record.uid.clone(), self.stored.record.epoch);
        let is_held = |record: &JobRecord| record.uid == uid && record.epoch == epoch;
        let while_held = |record: &mut JobRecord| if is_held(record) { change(record) } else { Change::Nothing };
        let (store, known) = (self.context.store.as_ref(), &self.stored);
        match persistently(&self.channels.view, || amend_or_mend(store, known, while_held)).await {
            Written::Stored(stored) if is_held(&stored.record) => self.stored = stored,
            Written::Stored(stored) if stored.record.uid == uid => return Next::Yield,
            Written::OtherFormat => return Next::Yield,
            // The record no longer exists, or another job has its name.
            Written::Stored(_) | Written::Gone => return self.abandon().await,
        }
        Next::GoOn
    }

    /// Rewrites the record after somebody has damaged it.
    pub(super) async fn mend(&mut self) -> Next {
        self.write(|_| Change::Nothing).await
    }

    /// Deletes the pods of a job whose record somebody else has deleted.
    pub(super) async fn abandon(&mut self) -> Next {
        warn!(job = %self.stored.name(), "someone else deleted the record; deleting the pods");
        self.delete_all_pods().await;
        Next::End
    }

    /// Records the failure before the evidence is deleted, so that later drivers count the failure exactly once.
    pub(super) async fn record_restart(&mut self) -> Next {
        let Some(failed) = self.failed.take() else { return Next::GoOn };
        let (restarts, failure) = (self.stored.record.restarts.total() + 1, &failed.failure);
        info!(job = %self.stored.name(), %failure, counted = failed.counted, restarts, "restarting the gang");
        let (forgiven, now) = (self.restarts().forgiven, self.context.store.now());
        self.write(|record| {
            // An earlier attempt may have succeeded although its answer was lost.
            let is_noted = |last: &FailedStart| (last.generation, last.at) == (failed.generation, failed.at);
            if record.restarts.failed_starts.last().is_some_and(is_noted) {
                return Change::Nothing;
            }
            record.halted = None;
            record.restarts.forgiven = forgiven;
            record.restarts.note(failed.clone());
            record.restarts.count_restart(now);
            Change::Write
        })
        .await
    }

    /// Records the failure after which the job waits for new code, and since when. A later master may be unable to
    /// observe this failure.
    pub(super) async fn record_halt(&mut self) -> Next {
        let (JobPhase::Halted(Halt { pushes, .. }), Some(failed), Some(since)) =
            (&self.phase, &self.failed, self.times.halted)
        else {
            return Next::GoOn;
        };
        let halted = Halted { since, pushes: *pushes, failed: failed.clone() };
        self.write(|record| {
            record.halted = Some(halted.clone());
            Change::Write
        })
        .await
    }

    /// Records which start the suspension has ended, and the number of starts. After the pods are deleted, no agent can
    /// report these values to a later master.
    pub(super) async fn record_suspension(&mut self) -> Next {
        let JobRecord { restarts, suspension, .. } = &self.stored.record;
        let known = restarts.newest_failed().max(suspension.ended);
        let Some(ended) = self.current_start.filter(|start| Some(*start) > known) else { return Next::GoOn };
        let starts = self.starts_so_far(&self.gang());
        self.write(|record| {
            record.halted = None;
            record.suspension.ended = Some(ended);
            record.suspension.starts = starts.saturating_sub(record.restarts.total());
            Change::Write
        })
        .await
    }

    /// Records the result before the pods and their evidence are deleted. The driver does nothing else meanwhile.
    pub(super) async fn conclude(&mut self, result: JobResult) -> Next {
        let generation = self.channels.view.borrow().generation;
        let failed = self.failed.take();
        let replicas = self.replica_views();
        info!(job = %self.stored.name(), result = %result.state(), "job ended");
        let roster = self.shown_roster();
        let ended = Ended { result, times: self.times.clone(), generation, roster, replicas }.bounded();
        self.write(|record| {
            if record.ended.is_some() {
                return Change::Nothing;
            }
            record.ended = Some(ended.clone());
            failed.clone().into_iter().for_each(|failed| record.restarts.note(failed));
            Change::Write
        })
        .await
    }

    /// Builds the diagnosis of a failed start. If exec.py of a replica has failed, first waits until the replica's last
    /// output is copied.
    pub(super) async fn failed_start(&mut self, failure: Failure, gang: &Gang) -> FailedStart {
        let mut last_lines = vec![];
        let silence = mem::take(&mut self.silence);
        if let Some(id) = failure.replica().or_else(|| longest_silent(&silence))
            && let (Some(replica), Some(log)) = (self.replicas.get(&id), self.channels.logs.of(id))
        {
            // The last lines lack any output that arrives after this timeout. That output is still copied.
            if let (Failure::ReplicaExited { .. }, Some(follower)) = (&failure, &replica.follower) {
                let _ = timeout(LAST_OUTPUT_TIMEOUT, follower.caught_up()).await;
            }
            last_lines = log.last_lines(LAST_LINES_MAX, replica.output_from).await;
        }
        let budget = self.policy.budget_of(&failure, gang.helper_of(&failure));
        let evidence =
            Evidence { generation: self.current_start, now: self.context.store.now(), budget, last_lines, silence };
        diagnose(failure, gang, evidence)
    }

    /// The time since the last copied output of each running replica.
    pub(super) async fn silences(&self) -> BTreeMap<ReplicaId, Duration> {
        let (horizon, now) = (self.phase.horizon(), SystemTime::now());
        let runs = |(_, replica): &(&ReplicaId, &Replica)| {
            matches!(ReplicaPhase::of(&replica.seen, horizon), ReplicaPhase::Running(_))
        };
        let mut silences = BTreeMap::new();
        for (id, _) in self.replicas.iter().filter(runs) {
            if let Some(last) = self.channels.logs.last_output(*id).await {
                silences.insert(*id, now.duration_since(last).unwrap_or_default());
            }
        }
        silences
    }

    /// Marks the logs as complete when the copies in progress have ended or have taken too long.
    pub(super) fn complete_logs(&mut self) {
        let followers: Vec<_> = self.replicas.values_mut().filter_map(|replica| replica.follower.take()).collect();
        let logs = Arc::clone(&self.channels.logs);
        self.tasks.spawn(async move {
            follower::await_copies(followers).await;
            logs.complete().await;
        });
    }

    /// Deletes a job after a user's request, or after its time to live. Deletes the record last: if this master dies
    /// before that, the next master finds the record and continues.
    pub(super) async fn forget(&mut self) -> Next {
        self.take_pods();
        if self.replicas.values().any(|replica| replica.seen.pod.is_some()) {
            self.delete_pods(PodSelection::All).await;
            return Next::GoOn;
        }
        // The watch might not have reported a pod that was created a moment ago.
        self.delete_all_pods().await;
        if let Err(error) = self.channels.logs.remove().await {
            warn!(job = %self.stored.name(), %error, "could not remove the job's output");
        }
        let (store, name, uid) = (self.context.store.as_ref(), self.stored.name(), &self.stored.record.uid);
        persistently(&self.channels.view, || store.delete(name, uid)).await;
        debug!(job = %name, "job deleted");
        Next::End
    }
}
