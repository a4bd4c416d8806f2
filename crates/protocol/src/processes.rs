//! How many processes of its script each replica runs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::ReplicaId;

/// Maximum number of processes of one replica.
pub const PROCESSES_MAX: u32 = 64;

/// How many processes each replica that trains is to run. In JSON, a number or a word, so the enum has no tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum NprocPerNode {
    /// This number.
    Number(u32),
    /// A number that follows from the machine.
    Named(NprocName),
}

/// A number of processes that follows from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NprocName {
    /// One process for each GPU of the replica.
    Gpu,
}

/// The text is neither a number nor `gpu`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("use a number from 1 to {PROCESSES_MAX}, or gpu for one process on each GPU")]
pub struct BadNprocPerNode;

impl FromStr for NprocPerNode {
    type Err = BadNprocPerNode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "gpu" => Ok(Self::Named(NprocName::Gpu)),
            number => match number.parse() {
                Ok(number @ 1..=PROCESSES_MAX) => Ok(Self::Number(number)),
                Ok(_) | Err(_) => Err(BadNprocPerNode),
            },
        }
    }
}

/// The name of a process: that of its replica, and its index if the replica has several processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessName {
    /// The replica.
    pub replica: ReplicaId,
    /// The index of the process in the replica. `None` if it is the only one.
    pub process: Option<u32>,
}

impl From<ReplicaId> for ProcessName {
    fn from(replica: ReplicaId) -> Self {
        Self { replica, process: None }
    }
}

impl fmt::Display for ProcessName {
    /// `worker-1`, or `worker-1/3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.replica.fmt(f)?;
        self.process.map_or(Ok(()), |process| write!(f, "/{process}"))
    }
}

/// What stands before each line of a process of this rank, if its replica has several processes. PyTorch labels its own
/// lines in this way.
pub fn rank_label(rank: impl fmt::Display) -> String {
    format!("[rank{rank}] ")
}

/// The rank in front of a line, and the line without its label. `None` if it has none.
pub fn rank_of(line: &str) -> Option<(u32, &str)> {
    let (rank, rest) = line.strip_prefix("[rank")?.split_once("] ")?;
    Some((rank.parse().ok()?, rest))
}

/// A line without the label of its rank.
pub fn without_rank(line: &str) -> &str {
    rank_of(line).map_or(line, |(_, rest)| rest)
}

/// One of several processes of a replica, which has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndedProcess {
    /// Its index in the replica, from 0.
    pub index: u32,
    /// Its rank. Absent if its environment had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

impl fmt::Display for EndedProcess {
    /// What follows the replica's name: `/3 (rank 11)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.index)?;
        self.rank.map_or(Ok(()), |rank| write!(f, " (rank {rank})"))
    }
}
