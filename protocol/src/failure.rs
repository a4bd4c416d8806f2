//! Why a start of a gang failed: which replica was the first, how it ended, and what followed from it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::agent::ExitReport;
use crate::ids::{Generation, ReplicaId, UnixMillis};

/// Why a start of a gang failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Failure {
    /// exec.py ended otherwise than with 0.
    ReplicaExited {
        /// Whose.
        replica: ReplicaId,
        /// How.
        exit: ExitReport,
    },
    /// A pod ended or vanished and took its run with it.
    ReplicaLost {
        /// Whose.
        replica: ReplicaId,
        /// In the back end's words.
        reason: String,
        /// What another start would find.
        #[serde(default)]
        loss: Loss,
    },
    /// The gang was not complete, or not started, in time.
    StartTimeout {
        /// Who had not come so far.
        missing: Vec<ReplicaId>,
        /// The time that was given.
        after_seconds: u64,
        /// Why the first of them waits, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The job took longer than it may in all.
    DeadlineExceeded {
        /// The time that was given.
        after_seconds: u64,
    },
}

/// Why a pod was lost, as far as it matters for another start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The cluster took it: it was evicted, preempted, drained, or deleted by someone.
    Disrupted,
    /// It broke.
    #[default]
    Broken,
    /// Another one would do no better: its image cannot be pulled, the cluster refuses it.
    Hopeless,
}

impl Failure {
    /// The replica that failed first; of a gang that was not complete, the first that had not come.
    pub fn replica(&self) -> Option<ReplicaId> {
        match self {
            Self::ReplicaExited { replica, .. } | Self::ReplicaLost { replica, .. } => Some(*replica),
            Self::StartTimeout { missing, .. } => missing.first().copied(),
            Self::DeadlineExceeded { .. } => None,
        }
    }
}

/// How the reason begins of a pod that never came to be.
pub const NEVER_STARTED: &str = "never started: ";

/// What to say of a replica whose pod was lost for this reason: `was lost: …`, or `was never started: …`.
pub fn was_lost(reason: &str) -> String {
    match reason.strip_prefix(NEVER_STARTED) {
        Some(_) => format!("was {reason}"),
        None => format!("was lost: {reason}"),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReplicaExited { replica, exit } => write!(f, "{replica} {}", exit.outcome),
            Self::ReplicaLost { replica, reason, loss: _ } => write!(f, "{replica} {}", was_lost(reason)),
            Self::StartTimeout { missing, after_seconds, reason } => {
                let first: Vec<String> = missing.iter().take(5).map(ReplicaId::to_string).collect();
                write!(f, "{} of the gang did not come within {after_seconds} s: {}", missing.len(), first.join(", "))?;
                if missing.len() > first.len() {
                    f.write_str(", …")?;
                }
                reason.as_ref().map_or(Ok(()), |reason| write!(f, " ({reason})"))
            }
            Self::DeadlineExceeded { after_seconds } => {
                write!(f, "the job was not done within its deadline of {after_seconds} s")
            }
        }
    }
}

/// A start of a gang that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailedStart {
    /// Which; absent when the gang had never been complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// When the first replica failed, by its agent's clock where the agent said, else by the master's.
    pub at: UnixMillis,
    /// The first failure in time.
    pub failure: Failure,
    /// Whether a restart for it counts against the job's budget, by what kind of failure it is: also where the budget is
    /// spent and no restart follows.
    pub counted: bool,
    /// The last lines that the replica printed, at most [`LAST_LINES_MAX`]; only of the newest failed start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_lines: Vec<String>,
    /// The replicas that failed only because it did, at most [`CONSEQUENCES_MAX`]. After a deadline: how each replica stood
    /// then, those that still ran (`stopped`) first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consequences: Vec<Consequence>,
}

/// Most lines of a replica's last output that are kept with its failure.
pub const LAST_LINES_MAX: usize = 20;

/// Most consequences that are kept with a failure.
pub const CONSEQUENCES_MAX: usize = 16;

/// A replica that failed, or was stopped, because another had failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Consequence {
    /// Role and index, such as `worker-2`.
    pub replica: ReplicaId,
    /// How it ended, in words: `exited with code 1`.
    pub how: String,
    /// Whether it was told to end, for TensorFlow's other members hang once one is lost.
    pub stopped: bool,
}

/// Most failed, and most repeated, starts that are kept: the newest.
const KEPT: usize = 8;

/// How often the gang was started again, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Restarts {
    /// Restarts that count against the budget.
    pub counted: u32,
    /// Restarts for what the cluster took away.
    pub uncounted: u32,
    /// The newest failed starts, the last one last. When the job has failed, that is why.
    pub failed_starts: Vec<FailedStart>,
    /// The newest starts that no failure made necessary: the master had gone, and the start before with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub repeated_starts: Vec<RepeatedStart>,
}

/// A start that repeats what an earlier master had, or may have, started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepeatedStart {
    /// Its number. The first part counts the masters that have held the job.
    pub generation: Generation,
    /// When it began, by the master's clock.
    pub at: UnixMillis,
}

impl Restarts {
    /// Whether every start went well so far.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How often the gang was started again.
    pub fn total(&self) -> u32 {
        self.counted.saturating_add(self.uncounted)
    }

    /// The newest start that is known to have failed.
    pub fn newest_failed(&self) -> Option<Generation> {
        self.failed_starts.iter().filter_map(|start| start.generation).max()
    }

    /// Keeps a failed start. Only the newest keeps its last output.
    pub fn note(&mut self, failed: FailedStart) {
        for older in &mut self.failed_starts {
            older.last_lines.clear();
            match &mut older.failure {
                Failure::ReplicaExited { exit, .. } => exit.forget_output(),
                Failure::StartTimeout { missing, .. } => missing.truncate(CONSEQUENCES_MAX),
                Failure::ReplicaLost { .. } | Failure::DeadlineExceeded { .. } => {}
            }
        }
        self.failed_starts.push(failed);
        if self.failed_starts.len() > KEPT {
            self.forget_oldest();
        }
    }

    /// Forgets the oldest failed start, but not the newest generation that failed: a later failure may have none.
    pub fn forget_oldest(&mut self) {
        let newest = self.newest_failed();
        let oldest = self.failed_starts.iter().position(|start| newest.is_none() || start.generation != newest);
        self.failed_starts.remove(oldest.unwrap_or(0));
    }

    /// Keeps a start that repeats an earlier master's.
    pub fn note_repeated(&mut self, start: RepeatedStart) {
        self.repeated_starts.push(start);
        if self.repeated_starts.len() > KEPT {
            self.repeated_starts.remove(0);
        }
    }

    /// Counts the restart that makes up for the newest failed start.
    pub fn count_restart(&mut self) {
        let is_counted = self.failed_starts.last().is_some_and(|failed| failed.counted);
        let number = if is_counted { &mut self.counted } else { &mut self.uncounted };
        *number = number.saturating_add(1);
    }
}
