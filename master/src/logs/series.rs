//! What the scripts of a job have reported, and what their runs have used, over time. The points are kept only in memory.
//! Their number is limited, however long the job runs.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use protocol::agent::RunStatus;
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::progress::{JobSeries, Progress, ReplicaSeries, SeriesPoint, Values};
use protocol::view::JobView;
use tokio::time::timeout;

use super::JobLogs;
use super::metrics::{Patterns, ReadOutput};
use super::thinned::{Added, Points};
use super::usage::UsageOfJob;
use crate::mutex::Mutex;

/// Maximum points of a job. Each replica may have an equal share. An answer about 64 replicas then has up to 500 KB.
const POINTS_MAX: usize = 1792;
/// Maximum points of one replica, in addition to its newest point with a report and its newest point without a report.
const REPLICA_POINTS_MAX: usize = 256;
/// Points that each replica may always have, even if all replicas together then have more than [`POINTS_MAX`].
const REPLICA_POINTS_MIN: usize = 16;
/// Maximum time of one reading of numbers in the output.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum starts whose time is kept.
const STARTS_MAX: usize = 64;

/// Minimum and maximum interval at which the master asks an agent for the progress of its script.
const INTERVAL_MIN: Duration = Duration::from_secs(5);
const INTERVAL_MAX: Duration = Duration::from_secs(30);
/// The interval for each agent is this time multiplied by the number of replicas, within the two limits above.
const INTERVAL_EACH: Duration = Duration::from_millis(100);

/// The points of all replicas of a job, and what the replicas use.
#[derive(Debug, Default)]
pub struct SeriesOfJob {
    kept: Mutex<KeptSeries>,
    read: ReadOutput,
    usage: UsageOfJob,
}

#[derive(Debug, Default)]
struct KeptSeries {
    replicas: BTreeMap<ReplicaId, Points>,
    /// When the newest points were added. All points that are added at one time are in one answer.
    until: Option<UnixMillis>,
    /// When the newest starts began.
    starts: BTreeMap<Generation, UnixMillis>,
    /// The newest report or post of each replica.
    reported: BTreeMap<ReplicaId, (Generation, Box<Progress>)>,
    /// Whether the points are in the history instead.
    is_in_history: bool,
}

impl SeriesOfJob {
    /// Notes that a start begins. All runs of earlier starts have ended.
    pub fn begin(&self, generation: Generation, now: UnixMillis) {
        self.kept.lock().begin(generation, now);
    }

    /// Adds a point if this status reports what the run uses, or if the script has reported or posted a new step.
    pub fn note(&self, replica: ReplicaId, status: &RunStatus, now: UnixMillis) {
        let used = self.usage.note(replica, status, now);
        let Some(generation) = status.generation else { return };
        let progress = status.reported().cloned().map(Box::new);
        let mut kept = self.kept.lock();
        // If an earlier master began the start, this master learns of the start only from an agent's status.
        kept.begin(generation, now);
        // Add no point for a repeated report: such points would displace rare numbers from the output.
        let progress = progress.filter(|progress| kept.is_news(replica, generation, progress));
        if used.is_some() || progress.is_some() {
            let cpu_percent = used.as_ref().and_then(|used| used.cpu_percent);
            let rss_bytes = used.map(|used| used.rss_bytes);
            let point = SeriesPoint { at: now, generation, progress, cpu_percent, rss_bytes };
            let added = Added { at: kept.next(now), point };
            kept.push(replica, added);
        }
    }

    /// Adds the numbers in the new output of the first replica that trains. Each of these points also has the newest report
    /// that the script had made by then.
    pub async fn read_metrics(&self, view: &JobView, logs: &JobLogs, now: UnixMillis) -> io::Result<()> {
        let (metrics, Some(replica)) = (&view.spec.metrics, view.first_training()) else { return Ok(()) };
        let Some(log) = logs.of(replica).filter(|_| !metrics.is_empty()) else { return Ok(()) };
        let found = |numbers: Vec<(Option<UnixMillis>, Values)>| {
            let mut kept = self.kept.lock();
            let added = kept.next(now);
            for (at, values) in numbers {
                let at = at.unwrap_or(now);
                let Some(generation) = kept.start_at(at).or(view.generation) else { continue };
                let reported = kept.report_at(replica, generation, at).cloned().unwrap_or_default();
                let progress = Progress { values: values.and(&reported.values), ..reported };
                let progress = Some(Box::new(progress));
                let point = SeriesPoint { at, generation, progress, cpu_percent: None, rss_bytes: None };
                kept.push(replica, Added { at: added, point });
            }
        };
        let patterns = Patterns { numbers: metrics.clone(), processes: view.spec.nproc_per_node };
        // What is not read in time is read by the next request.
        timeout(READ_TIMEOUT, self.read.numbers((replica, &log), &patterns, found)).await.unwrap_or(Ok(()))
    }

    /// Forgets what a replica uses, because its pod is lost.
    pub fn forget_usage(&self, replica: ReplicaId) {
        self.usage.forget(replica);
    }

    /// The points that were added after the time `after`. With `tail`, only the newest points of each replica: this
    /// many with a report, and this many without a report.
    pub fn shown(&self, after: Option<UnixMillis>, tail: Option<usize>) -> JobSeries {
        let kept = self.kept.lock();
        // `after` may come from an answer of an earlier master, whose clock was ahead. Then `after` says nothing about
        // these points.
        let after = after.filter(|after| kept.until.is_some_and(|until| *after <= until));
        let series = |(replica, points): (&ReplicaId, &Points)| ReplicaSeries {
            replica: *replica,
            points: points.shown(after, tail),
        };
        JobSeries { replicas: kept.replicas.iter().map(series).collect(), until: kept.until, usage: self.usage.shown() }
    }

    /// Forgets the points, because the history has them.
    pub fn move_to_history(&self) {
        *self.kept.lock() = KeptSeries { is_in_history: true, ..KeptSeries::default() };
    }

    /// Whether the points are in the history instead.
    pub fn is_in_history(&self) -> bool {
        self.kept.lock().is_in_history
    }

    /// The interval at which to ask an agent whose script runs.
    pub fn interval(&self) -> Duration {
        let replicas = u32::try_from(self.usage.running()).unwrap_or(u32::MAX);
        INTERVAL_EACH.saturating_mul(replicas).clamp(INTERVAL_MIN, INTERVAL_MAX)
    }
}

impl KeptSeries {
    fn begin(&mut self, generation: Generation, now: UnixMillis) {
        self.starts.entry(generation).or_insert(now);
        if self.starts.len() > STARTS_MAX {
            self.starts.pop_first();
        }
    }

    /// The start during which a line was printed. A line before the first known start gets that start. Nothing is printed
    /// in the millisecond in which a start begins.
    fn start_at(&self, time: UnixMillis) -> Option<Generation> {
        let begun = self.starts.iter().rev().find(|(_, began)| **began < time);
        begun.or(self.starts.first_key_value()).map(|(generation, _)| *generation)
    }

    /// Notes what a replica has reported. Returns whether this report differs from the previous report.
    fn is_news(&mut self, replica: ReplicaId, generation: Generation, progress: &Progress) -> bool {
        let is_known = |(of, known): &(Generation, Box<Progress>)| *of == generation && **known == *progress;
        if self.reported.get(&replica).is_some_and(is_known) {
            return false;
        }
        self.reported.insert(replica, (generation, Box::new(progress.clone())));
        true
    }

    fn report_at(&self, replica: ReplicaId, generation: Generation, time: UnixMillis) -> Option<&Progress> {
        self.replicas.get(&replica)?.report_at(generation, time)?.progress.as_deref()
    }

    /// The time for points that are added now. This time is later than the times of all earlier points, even if the
    /// clock has not moved on.
    fn next(&mut self, now: UnixMillis) -> UnixMillis {
        let next = self.until.map_or(now, |until| UnixMillis(now.0.max(until.0.saturating_add(1))));
        self.until = Some(next);
        next
    }

    fn push(&mut self, replica: ReplicaId, added: Added) {
        let max = (POINTS_MAX / self.replicas.len().max(1)).clamp(REPLICA_POINTS_MIN, REPLICA_POINTS_MAX);
        self.replicas.entry(replica).or_default().push(added, max);
    }
}

#[cfg(test)]
#[path = "series_tests.rs"]
mod tests;
