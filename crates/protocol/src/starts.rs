//! The starts of a gang, and why each of them began.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::ids::{Generation, ReplicaId, UnixMillis};
use crate::progress::LostSteps;

/// A start of the gang, and why it began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GangChange {
    /// The number of the start.
    pub generation: Generation,
    /// When the start began, by the master's clock.
    pub at: UnixMillis,
    /// How many workers take part.
    pub workers: u32,
    /// Why the gang started.
    pub cause: ChangeCause,
    /// The steps of the previous start that are lost. Absent if none are known to be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_steps: Option<LostSteps>,
}

/// Why the gang started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum ChangeCause {
    /// This is the job's first start.
    First,
    /// Workers joined.
    Joined {
        /// The workers that joined.
        replicas: Vec<ReplicaId>,
    },
    /// The maximum of workers was lowered.
    Shrunk,
    /// A replica left the gang, failed or was lost.
    Left {
        /// What happened to the replica.
        failure: Failure,
    },
    /// The job was suspended, and a user has resumed it.
    Resumed,
    /// A user has pushed new code.
    Pushed,
    /// A master has taken the job over. This is the first start under this master.
    TakenOver,
}

impl ChangeCause {
    /// The name of the cause, as in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Joined { .. } => "joined",
            Self::Shrunk => "shrunk",
            Self::Left { .. } => "left",
            Self::Resumed => "resumed",
            Self::Pushed => "pushed",
            Self::TakenOver => "taken_over",
        }
    }
}

/// Maximum number of [`GangChange`]s in a job's view. The newest are kept.
pub const CHANGES_MAX: usize = 16;

impl fmt::Display for GangChange {
    /// A sentence without a full stop, such as `worker-3 was lost: node drained: going on with 3 workers (start 1.4)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, at: _, workers, cause, lost_steps } = self;
        if *cause == ChangeCause::First {
            return write!(f, "started with {} (start {generation})", counted_workers(*workers));
        }
        write!(f, "{cause}")?;
        if let Some(lost) = lost_steps {
            write!(f, "; {lost}")?;
        }
        write!(f, ": going on with {} (start {generation})", counted_workers(*workers))
    }
}

impl fmt::Display for ChangeCause {
    /// The cause in a few words, such as `worker-3 joined`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("first start"),
            Self::Joined { replicas } => {
                let names: Vec<String> = replicas.iter().map(ReplicaId::to_string).collect();
                write!(f, "{} joined", names.join(", "))
            }
            Self::Shrunk => f.write_str("fewer workers are wanted"),
            Self::Left { failure } => write!(f, "{failure}"),
            Self::Pushed => f.write_str("new code"),
            Self::Resumed => f.write_str("resumed"),
            Self::TakenOver => f.write_str("another master took over"),
        }
    }
}

/// A number of workers in words.
pub fn counted_workers(workers: u32) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") }
}
