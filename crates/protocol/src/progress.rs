//! What a script reports with the helper `muster.py`, and the series that a master keeps of these reports and of what
//! the runs use.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::ids::{Generation, ReplicaId, UnixMillis};
use crate::usage::ReplicaUsage;

/// Maximum number of [`Values`] in one report.
pub const VALUES_MAX: usize = 8;

/// Maximum bytes of the name of a value.
pub const VALUE_NAME_BYTES: usize = 64;

/// The newest report of a run's script. `steps`, `samples`, `compute_us` and `wall_us` are totals since the run began,
/// or since the batch sizes last changed. The totals leave out the first step of this period, and the steps with the
/// short last batch of an epoch. Only reports of one start with an equal `split` can be compared.
#[serde_with::apply(_ => #[serde(default, skip_serializing_if = "crate::is_default")])]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Progress {
    /// The last step by the script's own count. Absent before the first step.
    pub step: Option<u64>,
    /// The version of the batch sizes of all replicas. Version 0 is the sizes with which the start began.
    pub split: u64,
    /// This replica's number of samples in a full step with these sizes.
    pub batch: u32,
    /// The version of the newest sizes that the script has received; 0 if there are none.
    pub noticed: u64,
    /// Total number of steps.
    pub steps: u64,
    /// Total number of samples of this replica.
    pub samples: u64,
    /// Total microseconds of the replica's own computation; 0 if the script does not measure its computation.
    pub compute_us: u64,
    /// Total microseconds of the steps.
    pub wall_us: u64,
    /// The newest values that the script has logged, such as its loss.
    pub values: Values,
    /// The last step whose state the script has saved or restored. Absent if it is unknown.
    pub saved: Option<u64>,
}

/// Steps whose result was not saved. The next start repeats them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LostSteps {
    /// The replica that saves the state of the job.
    pub replica: ReplicaId,
    /// The first lost step.
    pub first: u64,
    /// The last lost step.
    pub last: u64,
}

impl fmt::Display for LostSteps {
    /// A sentence without a full stop, such as `steps 51 to 61 are lost, because worker-0 ended before it had saved`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replica, first, last } = self;
        if first == last {
            write!(f, "step {last} is lost")?;
        } else {
            write!(f, "steps {first} to {last} are lost")?;
        }
        write!(f, ", because {replica} ended before it had saved")
    }
}

impl Progress {
    /// The first and the last step that are not saved. `None` if no such step is known.
    pub fn unsaved(&self) -> Option<(u64, u64)> {
        let (saved, last) = (self.saved?, self.step?);
        (saved < last).then_some((saved + 1, last))
    }

    /// Whether the script has completed a step in this run.
    pub fn has_stepped(&self) -> bool {
        self.step.is_some()
    }
}

/// Named finite numbers, at most [`VALUES_MAX`]. Further or invalid values are left out when a report is read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(from = "BTreeMap<String, f64>")]
pub struct Values(BTreeMap<String, f64>);

// No number is NaN, so each number equals itself.
impl Eq for Values {}

impl Values {
    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These values, and those of `others` with other names, but at most [`VALUES_MAX`].
    #[must_use]
    pub fn and(self, others: &Self) -> Self {
        let mut all = self.0;
        for (name, number) in &others.0 {
            if all.len() < VALUES_MAX {
                all.entry(name.clone()).or_insert(*number);
            }
        }
        Self(all)
    }

    /// Each name with its number, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, number)| (name.as_str(), *number))
    }
}

impl FromIterator<(String, f64)> for Values {
    /// Keeps the first numbers that are valid.
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(numbers: I) -> Self {
        let fits = |(name, number): &(String, f64)| is_value_name(name) && number.is_finite();
        Self(numbers.into_iter().filter(fits).take(VALUES_MAX).collect())
    }
}

impl From<BTreeMap<String, f64>> for Values {
    fn from(numbers: BTreeMap<String, f64>) -> Self {
        numbers.into_iter().collect()
    }
}

/// Whether a value may have this name: 1 to [`VALUE_NAME_BYTES`] bytes without control characters.
pub fn is_value_name(name: &str) -> bool {
    (1..=VALUE_NAME_BYTES).contains(&name.len()) && !name.contains(char::is_control)
}

/// The answer of `GET /v1/jobs/NAME/series`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSeries {
    /// The replicas that have points, ordered by role and index.
    pub replicas: Vec<ReplicaSeries>,
    /// When the master added the newest of all its points, by the master's clock. To get only the points that it adds
    /// later, pass this time as `after`. Absent if the master has no points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// What the replicas use, ordered by role and index. Only replicas whose run this master has seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<ReplicaUsage>,
}

/// The points of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaSeries {
    /// Role and index, such as `worker-2`.
    pub replica: ReplicaId,
    /// The replica's points, oldest first. Of a job that runs long, only every n-th point and the newest are kept.
    pub points: Vec<SeriesPoint>,
}

/// What a run had reported and used at one time.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeriesPoint {
    /// When the master received the numbers, by the master's clock. Numbers that the master has read from the output have
    /// the time at which their line was printed.
    pub at: UnixMillis,
    /// The start to which the run belongs.
    pub generation: Generation,
    /// The newest report of the script. Absent if the script has reported nothing in this start.
    // In a box, so that the many points of scripts that report nothing stay small.
    pub progress: Option<Box<Progress>>,
    /// Processor time since the previous numbers, in percent of one core. Absent if it is unknown.
    pub cpu_percent: Option<u32>,
    /// Resident memory in bytes. Memory that several processes share counts for each of them. Absent if it is unknown.
    pub rss_bytes: Option<u64>,
}
