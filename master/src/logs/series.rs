//! The progress that the scripts of a job have reported over time, and what their runs use now. The reports are kept only in memory. The number of
//! kept reports is limited, however long the job runs.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use protocol::agent::RunStatus;
use protocol::ids::{ReplicaId, UnixMillis};
use protocol::progress::{JobSeries, Progress, ReplicaSeries, SeriesPoint, Values};
use protocol::view::JobView;

use super::JobLogs;
use super::metrics::Read;
use super::usage::UsageOfJob;
use crate::mutex::Mutex;

/// Maximum points of a job. Each replica may have an equal share.
const POINTS_MAX: usize = 2048;
/// Maximum points of one replica, besides its newest point.
const REPLICA_POINTS_MAX: usize = 256;
/// Points that each replica may always have, even if all replicas together then have more than [`POINTS_MAX`].
const REPLICA_POINTS_MIN: usize = 16;

/// Minimum and maximum interval at which the master asks an agent for the progress of its script.
const INTERVAL_MIN: Duration = Duration::from_secs(5);
const INTERVAL_MAX: Duration = Duration::from_secs(30);
/// The interval for each agent is this time multiplied by the number of replicas, within the two limits above.
const INTERVAL_EACH: Duration = Duration::from_millis(100);

/// The points of all replicas of a job, and what the replicas use.
#[derive(Debug, Default)]
pub struct SeriesOfJob {
    points: Mutex<BTreeMap<ReplicaId, Thinned>>,
    read: Read,
    usage: UsageOfJob,
}

impl SeriesOfJob {
    /// Notes the usage in this status. Adds the progress, if the script has reported or posted a step.
    pub fn note(&self, replica: ReplicaId, status: &RunStatus, now: UnixMillis) {
        self.usage.note(replica, status, now);
        let (Some(progress), Some(generation)) = (status.reported(), status.generation) else { return };
        self.push(replica, SeriesPoint { at: now, generation, progress: progress.clone() });
    }

    /// Adds the numbers in the new output of the first replica that trains. Each of these points also has the newest report
    /// of the replica's script.
    pub async fn read_metrics(&self, view: &JobView, logs: &JobLogs, now: UnixMillis) -> io::Result<()> {
        let (metrics, first) = (&view.spec.metrics, view.replicas.iter().find(|one| one.replica.role.trains()));
        let (Some(replica), Some(generation)) = (first.map(|first| first.replica), view.generation) else {
            return Ok(());
        };
        let Some(log) = logs.of(replica).filter(|_| !metrics.is_empty()) else { return Ok(()) };
        let found = |at: Option<UnixMillis>, values: Values| {
            let newest = self.newest(replica).filter(|point| point.generation == generation);
            let reported = newest.map(|point| point.progress).unwrap_or_default();
            let progress = Progress { values: values.and(&reported.values), ..reported };
            self.push(replica, SeriesPoint { at: at.unwrap_or(now), generation, progress });
        };
        self.read.numbers((replica, &log), metrics, found).await
    }

    /// Forgets what a replica uses, because its pod is lost.
    pub fn forget_usage(&self, replica: ReplicaId) {
        self.usage.forget(replica);
    }

    fn newest(&self, replica: ReplicaId) -> Option<SeriesPoint> {
        let points = self.points.lock();
        let of_replica = points.get(&replica)?;
        of_replica.newest.as_ref().or(of_replica.kept.last()).cloned()
    }

    fn push(&self, replica: ReplicaId, point: SeriesPoint) {
        let mut all = self.points.lock();
        let max = (POINTS_MAX / all.len().max(1)).clamp(REPLICA_POINTS_MIN, REPLICA_POINTS_MAX);
        all.entry(replica).or_default().push(point, max);
    }

    /// The points after the time `after`. With `tail`, only this many newest points of each replica.
    pub fn shown(&self, after: Option<UnixMillis>, tail: Option<usize>) -> JobSeries {
        let series = |(replica, points): (&ReplicaId, &Thinned)| {
            let mut points = points.after(after);
            points.drain(..points.len().saturating_sub(tail.unwrap_or(usize::MAX)));
            ReplicaSeries { replica: *replica, points }
        };
        let replicas = self.points.lock().iter().map(series).collect();
        JobSeries { replicas, usage: self.usage.shown() }
    }

    /// The interval at which to ask an agent whose script runs.
    pub fn interval(&self) -> Duration {
        let replicas = u32::try_from(self.usage.running()).unwrap_or(u32::MAX);
        INTERVAL_EACH.saturating_mul(replicas).clamp(INTERVAL_MIN, INTERVAL_MAX)
    }
}

/// Every n-th point that was added, and the newest point. When the list is full, every second point of the list is
/// dropped, and n doubles.
#[derive(Debug, Default)]
struct Thinned {
    kept: Vec<SeriesPoint>,
    /// The newest point, if it is not in `kept`.
    newest: Option<SeriesPoint>,
    /// The number of points that were added, including the dropped points.
    pushed: usize,
    /// n is two to this power.
    halvings: u32,
}

impl Thinned {
    fn push(&mut self, point: SeriesPoint, max: usize) {
        // A repeated report is not a new point.
        let last = self.newest.as_ref().or(self.kept.last());
        if last.is_some_and(|last| (last.generation, &last.progress) == (point.generation, &point.progress)) {
            return;
        }
        self.newest = None;
        if self.pushed.is_multiple_of(1 << self.halvings) {
            self.kept.push(point);
        } else {
            self.newest = Some(point);
        }
        self.pushed += 1;
        while self.kept.len() > max {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let last = self.kept.last().cloned();
        let mut is_even = false;
        self.kept.retain(|_| {
            is_even = !is_even;
            is_even
        });
        self.halvings += 1;
        if self.kept.last() != last.as_ref() {
            self.newest = self.newest.take().or(last);
        }
    }

    fn after(&self, time: Option<UnixMillis>) -> Vec<SeriesPoint> {
        let all = self.kept.iter().chain(&self.newest);
        all.filter(|point| time.is_none_or(|time| point.at > time)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use protocol::agent::RunState;
    use protocol::ids::Generation;

    use super::*;

    fn status(step: u64) -> RunStatus {
        RunStatus {
            state: RunState::Running,
            generation: Some(Generation { epoch: 1, sequence: 1 }),
            helper: Some(Progress { step: Some(step), ..Progress::default() }),
            ..RunStatus::idle("boot")
        }
    }

    fn steps(series: &SeriesOfJob, after: Option<u64>, tail: Option<usize>) -> Vec<u64> {
        let shown = series.shown(after.map(UnixMillis), tail);
        shown.replicas[0].points.iter().filter_map(|point| point.progress.step).collect()
    }

    fn worker(index: u32) -> ReplicaId {
        format!("worker-{index}").parse().unwrap()
    }

    #[test]
    fn a_long_series_keeps_evenly_spaced_points_and_the_newest() {
        let series = SeriesOfJob::default();
        for step in 0..5000 {
            series.note(worker(0), &status(step), UnixMillis(step));
            let kept = steps(&series, None, None);
            assert!(
                kept.len() <= REPLICA_POINTS_MAX + 1 && kept.last() == Some(&step),
                "too many points, or the newest is missing: {kept:?}"
            );
            let is_even = kept.windows(3).all(|three| three[2] == step || three[2] - three[1] == three[1] - three[0]);
            assert!(
                is_even && kept[0] == 0 && (step < 256 || kept.len() >= REPLICA_POINTS_MAX / 2),
                "too few points, or their distances differ: {kept:?}"
            );
        }
    }

    #[test]
    fn each_of_many_replicas_has_few_points_and_its_agent_is_asked_less_often() {
        let series = SeriesOfJob::default();
        for step in 0..40 {
            (0..1000).for_each(|index| series.note(worker(index), &status(step), UnixMillis(step)));
        }
        let shown = series.shown(None, None).replicas;
        assert_eq!(shown.len(), 1000);
        assert!(shown[1..].iter().all(|replica| replica.points.len() <= REPLICA_POINTS_MIN + 1));
        assert_eq!(series.interval(), INTERVAL_MAX);
        assert_eq!(SeriesOfJob::default().interval(), INTERVAL_MIN);
    }

    #[test]
    fn a_reader_can_ask_for_the_points_after_a_time_and_for_the_newest_points() {
        let series = SeriesOfJob::default();
        for step in [1, 2, 2, 3] {
            series.note(worker(0), &status(step), UnixMillis(step * 10));
        }
        assert_eq!(steps(&series, None, None), [1, 2, 3]);
        assert_eq!(steps(&series, Some(10), None), [2, 3]);
        assert_eq!(steps(&series, None, Some(1)), [3]);
        assert_eq!(steps(&series, Some(30), Some(5)), [] as [u64; 0]);
    }

    #[test]
    fn a_step_that_a_script_posts_without_the_helper_is_a_point() {
        let series = SeriesOfJob::default();
        let posted = RunStatus { helper: None, posted: status(7).helper, ..status(0) };
        series.note(worker(0), &posted, UnixMillis(0));
        assert_eq!(steps(&series, None, None), [7]);
    }

    #[test]
    fn a_run_without_a_step_has_no_points() {
        let series = SeriesOfJob::default();
        let begun = RunStatus { helper: Some(Progress::default()), ..status(0) };
        [begun, RunStatus { helper: None, ..status(0) }].iter().for_each(|status| {
            series.note(worker(0), status, UnixMillis(0));
        });
        assert_eq!(series.shown(None, None).replicas, []);
    }
}
