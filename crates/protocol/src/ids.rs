//! Identifiers: names and numbers. Parsing checks them, so every value is valid.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::as_text::{checked_text, names, serde_as_string};

/// Maximum characters of a DNS label, such as the name of a pod.
pub const LABEL_MAX: usize = 63;
/// Maximum characters of a job's name. Every job has a chief or a worker; the shortest pod name appends `-chief-0`.
pub const JOB_NAME_MAX: usize = LABEL_MAX - "-chief-0".len();
/// With a job's name of at most this many characters, the names of any number of pods are short enough.
pub const SHORT_NAME_MAX: usize = 40;

/// A job's name: a DNS label (RFC 1123) of at most [`JOB_NAME_MAX`] characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

/// The text is not a valid [`JobName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "task name \"{name}\" is not a DNS label: use 1 to {JOB_NAME_MAX} of a-z, 0-9 and '-', beginning and ending with a letter or digit"
)]
pub struct BadJobName {
    name: String,
}

impl FromStr for JobName {
    type Err = BadJobName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let edges_ok = !text.starts_with('-') && !text.ends_with('-');
        if (1..=JOB_NAME_MAX).contains(&text.len()) && edges_ok && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadJobName { name: text.chars().take(80).collect() })
        }
    }
}

checked_text!(JobName);

/// What a replica does: TensorFlow 2's task types (`tensorflow/python/distribute/multi_worker_util.py`), in the order
/// in which replicas are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Coordinates the training.
    Chief,
    /// Computes gradients.
    Worker,
    /// Stores variables for ParameterServerStrategy.
    Ps,
    /// Evaluates checkpoints. It is not part of the training cluster.
    Evaluator,
}

impl Role {
    /// Whether replicas of this role train, and therefore have a [`Rank`].
    pub fn trains(self) -> bool {
        match self {
            Self::Chief | Self::Worker => true,
            Self::Ps | Self::Evaluator => false,
        }
    }
}

names!(Role {
    Chief => "chief",
    Worker => "worker",
    Ps => "ps",
    Evaluator => "evaluator",
});

/// One member of a role, written `worker-2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReplicaId {
    /// What the replica does.
    pub role: Role,
    /// Index in the role, from 0.
    pub index: u32,
}

/// The text is not a valid [`ReplicaId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a replica: write role-index, for example worker-2")]
pub struct BadReplicaId(String);

impl FromStr for ReplicaId {
    type Err = BadReplicaId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadReplicaId(text.chars().take(80).collect());
        let (role, index) = text.split_once('-').ok_or_else(bad)?;
        let role = Role::ALL.into_iter().find(|r| r.as_str() == role).ok_or_else(bad)?;
        let index: u32 = index.parse().map_err(|_| bad())?;
        let id = Self { role, index };
        // The number parser accepts `007` and `+7`; a replica has only one spelling.
        if id.to_string() == text { Ok(id) } else { Err(bad()) }
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role, self.index)
    }
}

serde_as_string!(ReplicaId);

/// A pod's name, `<job>-<role>-<index>`. Names are unique in a namespace, so a replica never has two pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName(String);

impl PodName {
    /// The name of the pod of one replica of one job.
    pub fn new(job: &JobName, replica: ReplicaId) -> Self {
        Self(format!("{job}-{replica}"))
    }

    /// The name as text. It is a DNS label, and therefore a safe file name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A replica's number among all replicas that train, from 0: the chief first, then the workers by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a gang's start, written `E.S` (epoch and sequence).
/// Generations are ordered: an agent refuses messages of a generation older than the newest generation it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Generation {
    /// How often a master, or a new driver of it, has taken this job, from 1.
    pub epoch: u32,
    /// Number of the start in this epoch, from 1.
    pub sequence: u32,
}

impl Generation {
    /// The generation of the next start under the same master.
    pub fn next(self) -> Self {
        Self { sequence: self.sequence.saturating_add(1), ..self }
    }
}

/// The text is not a valid [`Generation`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("generation \"{0}\" is not of the form E.S, for example 1.1")]
pub struct BadGeneration(String);

impl FromStr for Generation {
    type Err = BadGeneration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadGeneration(text.chars().take(80).collect());
        let (epoch, sequence) = text.split_once('.').ok_or_else(bad)?;
        let number = |part: &str| part.parse::<u32>().map_err(|_| bad());
        let generation = Self { epoch: number(epoch)?, sequence: number(sequence)? };
        // The number parser accepts `+1.01`; a generation has only one spelling.
        if generation.to_string() == text { Ok(generation) } else { Err(bad()) }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}

serde_as_string!(Generation);

/// A point in time on the wire: milliseconds since the Unix epoch, by the sender's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// The time from `earlier` to this point in time. Zero if `earlier` is later, because clocks differ.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}
