//! Why a start of a gang failed: the first replica that failed, how it ended, and the failures that it caused.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::agent::ExitReport;
use crate::headline;
use crate::ids::{Generation, ReplicaId, UnixMillis};
use crate::progress::LostSteps;

/// Why a start of a gang failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Failure {
    /// exec.py did not exit with 0.
    ReplicaExited {
        /// The replica that failed.
        replica: ReplicaId,
        /// How its exec.py ended.
        exit: ExitReport,
    },
    /// A pod ended or disappeared, or never started.
    ReplicaLost {
        /// The replica that lost its pod.
        replica: ReplicaId,
        /// The reason, in the back end's words.
        reason: String,
        /// The kind of loss, which decides whether the job restarts.
        #[serde(default)]
        loss: Loss,
    },
    /// The gang did not start within `start_timeout_seconds`.
    StartTimeout {
        /// The replicas that were not ready.
        missing: Vec<ReplicaId>,
        /// The time limit.
        after_seconds: u64,
        /// Why the first of `missing` was not ready, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The job took longer than its deadline.
    DeadlineExceeded {
        /// The deadline.
        after_seconds: u64,
    },
}

/// Why a pod was lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The cluster removed the pod: it was evicted, preempted, drained or deleted.
    Disrupted,
    /// The pod failed.
    #[default]
    Broken,
    /// A new pod would fail too: for example, its image cannot be pulled or the cluster refuses it.
    Hopeless,
}

impl Failure {
    /// The replica that failed first. After a start timeout, the first replica that was not ready. `None` after a
    /// deadline.
    pub fn replica(&self) -> Option<ReplicaId> {
        match self {
            Self::ReplicaExited { replica, .. } | Self::ReplicaLost { replica, .. } => Some(*replica),
            Self::StartTimeout { missing, .. } => missing.first().copied(),
            Self::DeadlineExceeded { .. } => None,
        }
    }

    /// Clears the texts that the failed run printed. Keeps at most [`CONSEQUENCES_MAX`] of the replicas that were not
    /// ready.
    pub fn forget_output(&mut self) {
        match self {
            Self::ReplicaExited { exit, .. } => exit.forget_output(),
            Self::StartTimeout { missing, .. } => missing.truncate(CONSEQUENCES_MAX),
            Self::ReplicaLost { .. } | Self::DeadlineExceeded { .. } => {}
        }
    }
}

/// Prefix of a loss reason when the pod never started.
pub const NEVER_STARTED: &str = "never started: ";

/// Describes the loss of a pod for this reason: `was lost: …`, or `was never started: …`.
pub fn was_lost(reason: &str) -> String {
    match reason.strip_prefix(NEVER_STARTED) {
        Some(_) => format!("was {reason}"),
        None => format!("was lost: {reason}"),
    }
}

impl fmt::Display for Failure {
    /// One sentence for people. If an exception ended the script, the exception and its line in the script.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReplicaExited { replica, exit } => write!(f, "{replica}{}", headline::of(exit)),
            Self::ReplicaLost { replica, reason, loss: _ } => write!(f, "{replica} {}", was_lost(reason)),
            Self::StartTimeout { missing, after_seconds, reason } => {
                let first: Vec<String> = missing.iter().take(5).map(ReplicaId::to_string).collect();
                let replicas = if missing.len() == 1 { "replica was" } else { "replicas were" };
                let (count, names) = (missing.len(), first.join(", "));
                write!(f, "{count} {replicas} not ready within {after_seconds} s: {names}")?;
                if missing.len() > first.len() {
                    f.write_str(", …")?;
                }
                reason.as_ref().map_or(Ok(()), |reason| write!(f, " ({reason})"))
            }
            Self::DeadlineExceeded { after_seconds } => {
                write!(f, "the job exceeded its deadline of {after_seconds} s")
            }
        }
    }
}

/// A failed start of the gang.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailedStart {
    /// The start's generation. Absent when the gang was never complete.
    pub generation: Option<Generation>,
    /// When the first replica failed: by its agent's clock if the agent reported it, else by the master's clock.
    pub at: UnixMillis,
    /// The first failure in time.
    pub failure: Failure,
    /// Whether this kind of failure counts against `max_restarts`. Can be true although no restart followed.
    pub counted: bool,
    /// The last lines of output of the replica that failed first, at most [`LAST_LINES_MAX`]. After a deadline, these
    /// are the lines of the replica that had printed nothing for the longest time. Only the newest failed start has
    /// these lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_lines: Vec<String>,
    /// After a deadline, where the scripts were, in one sentence: see [`crate::stacks::sentence`].
    pub stacks: Option<String>,
    /// Replicas that failed or were stopped because of this failure, at most [`CONSEQUENCES_MAX`]. After a deadline,
    /// the replicas that had to be stopped come first, and then all other replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consequences: Vec<Consequence>,
    /// The replica that trains and ended with code 0 before the first failure. If several did, the first of them. It may be
    /// the cause: the others still needed it.
    pub left_before: Option<LeftBefore>,
    /// The steps of this start that are lost. Absent if none are known to be lost.
    pub lost_steps: Option<LostSteps>,
    /// Identifies the failure, if a script failed with an exception.
    pub fingerprint: Option<Fingerprint>,
    /// The batches for which replicas had too little memory, at most [`CONSEQUENCES_MAX`], if the job divides a batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub too_large: Vec<TooLargeBatch>,
}

/// A replica that had succeeded while others still trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeftBefore {
    /// The replica.
    pub replica: ReplicaId,
    /// The time from its end to the failure, in milliseconds.
    pub earlier_millis: u64,
}

/// A batch for which a replica had too little memory, and what follows for later starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TooLargeBatch {
    /// The replica.
    pub replica: ReplicaId,
    /// The samples of the replica in one step.
    pub batch: u32,
    /// The most samples that the replica gets in later starts.
    pub most: u32,
    /// The largest global batch that is still possible. Absent if the job's own global batch is still possible. 0 if
    /// `most` is less than the smallest batch that the job allows for this replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub possible: Option<u64>,
}

impl fmt::Display for TooLargeBatch {
    /// A sentence without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replica, batch, most, possible } = self;
        write!(f, "{replica} has too little memory for a batch of {batch}")?;
        match possible {
            None => write!(f, ", so it gets at most {most} in later starts"),
            Some(0) => write!(f, ", and without it the job has no sizes within its bounds"),
            Some(global) => write!(f, ", and with at most {most} the largest global batch is {global}"),
        }
    }
}

impl FailedStart {
    /// A failed start that counts, without any evidence.
    pub fn new(generation: Option<Generation>, at: UnixMillis, failure: Failure) -> Self {
        Self {
            generation,
            at,
            failure,
            counted: true,
            last_lines: vec![],
            stacks: None,
            consequences: vec![],
            left_before: None,
            lost_steps: None,
            fingerprint: None,
            too_large: vec![],
        }
    }
}

/// Identifies a failure of a script: two starts with equal fingerprints failed in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fingerprint {
    /// The role and the seat of the replica that failed.
    pub seat: ReplicaId,
    /// The index of the process that failed, if the replica has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// The beginning of the exception's first line, at most [`FINGERPRINT_JSON_BYTES`] in JSON.
    pub exception: String,
    /// The last step that the replica's script reported in this start. Absent if it reported none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The version of the batch sizes at that step.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub split: u64,
    /// The number of members of the start.
    pub members: u32,
    /// How often a user had pushed new code when the start began.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub pushes: u32,
}

/// Maximum length of the exception in a [`Fingerprint`].
pub const FINGERPRINT_JSON_BYTES: usize = 256;

impl Fingerprint {
    /// The failed start before this failure, if it failed in the same way. `earlier` is sorted, oldest first. Failures
    /// that do not count, such as evictions, are skipped.
    pub fn same_before<'a>(&self, earlier: &'a [FailedStart]) -> Option<&'a FailedStart> {
        let before = earlier.iter().rev().find(|start| start.counted)?;
        (before.fingerprint.as_ref() == Some(self)).then_some(before)
    }

    /// Whether the next start would fail in the same way too. False if the script has reported no step, because it may
    /// have come further the second time.
    pub fn would_recur(&self, earlier: &[FailedStart]) -> bool {
        self.step.is_some() && self.same_before(earlier).is_some()
    }
}

/// Maximum lines of a replica's last output in a [`FailedStart`].
pub const LAST_LINES_MAX: usize = 20;

/// Maximum consequences in a [`FailedStart`].
pub const CONSEQUENCES_MAX: usize = 16;

/// A replica that failed or was stopped because another replica failed. After a deadline: any replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Consequence {
    /// Role and index, such as `worker-2`.
    pub replica: ReplicaId,
    /// How the replica ended, or its state at the deadline, in words, such as `exited with code 1`.
    pub how: String,
    /// Whether Muster stopped the replica after the first failure or at the deadline.
    pub stopped: bool,
}

/// How many failed starts are kept. The newest are kept.
const KEPT: usize = 8;

/// The gang's restarts, and the reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Restarts {
    /// Restarts that count against `max_restarts`.
    pub counted: u32,
    /// Restarts that do not count against `max_restarts`, for example because the cluster removed a pod.
    pub uncounted: u32,
    /// Restarts in `counted` that no longer use up `max_restarts`. In an elastic job, these are the restarts before the
    /// newest period of 10 minutes without a counted failure.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub forgiven: u32,
    /// When the newest restart in `counted` was decided, by the master's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_counted_at: Option<UnixMillis>,
    /// The newest failed starts, oldest first. When the job has failed, the last entry is the cause.
    pub failed_starts: Vec<FailedStart>,
    /// The most samples that replicas get because of failed starts that are not in `failed_starts` any more.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub batch_limits: BTreeMap<ReplicaId, u32>,
}

impl Restarts {
    /// Whether there were no restarts and no failed starts.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Restarts that use up `max_restarts`.
    pub fn spent(&self) -> u32 {
        self.counted.saturating_sub(self.forgiven)
    }

    /// Number of restarts, counted and uncounted.
    pub fn total(&self) -> u32 {
        self.counted.saturating_add(self.uncounted)
    }

    /// The newest generation of all failed starts. `None` if no failed start has a generation.
    pub fn newest_failed(&self) -> Option<Generation> {
        self.failed_starts.iter().filter_map(|start| start.generation).max()
    }

    /// The largest batch for which the memory of this replica may be enough. `None` if nothing is known.
    pub fn batch_limit(&self, replica: ReplicaId) -> Option<u32> {
        let all = self.failed_starts.iter().flat_map(|start| &start.too_large);
        let kept = all.filter(|batch| batch.replica == replica).map(|batch| batch.most);
        kept.chain(self.batch_limits.get(&replica).copied()).min()
    }

    /// Adds a failed start, and removes the last output of older failed starts.
    pub fn note(&mut self, failed: FailedStart) {
        for older in &mut self.failed_starts {
            older.last_lines.clear();
            older.failure.forget_output();
        }
        self.failed_starts.push(failed);
        if self.failed_starts.len() > KEPT {
            self.forget_oldest();
        }
    }

    /// Removes the oldest failed start, but keeps the start of [`Self::newest_failed`] while another start is left.
    pub fn forget_oldest(&mut self) {
        let newest = self.newest_failed();
        let oldest = self.failed_starts.iter().position(|start| newest.is_none() || start.generation != newest);
        let forgotten = self.failed_starts.remove(oldest.unwrap_or(0));
        for TooLargeBatch { replica, most, .. } in forgotten.too_large {
            let limit = self.batch_limits.entry(replica).or_insert(most);
            *limit = most.min(*limit);
        }
    }

    /// Adds a restart to `counted` or `uncounted`, depending on the newest failed start. The restart is decided `now`, by
    /// the master's clock: the clock of the agent that reported the failure may be wrong.
    pub fn count_restart(&mut self, now: UnixMillis) {
        if self.failed_starts.last().is_some_and(|failed| failed.counted) {
            self.counted = self.counted.saturating_add(1);
            self.last_counted_at = Some(now);
        } else {
            self.uncounted = self.uncounted.saturating_add(1);
        }
    }
}
