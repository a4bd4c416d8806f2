//! How fast the replicas of a job compute, from the reports of their scripts. Pure.

use std::collections::BTreeMap;

use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::progress::{JobSeries, Progress, SeriesPoint};

use super::reports::{Done, ShownReport, newest_report};
use super::spelled;

/// A replica is slow if its time for a sample is at least this many times the median.
const SLOW: f64 = 1.5;

/// A step of one replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    /// Its samples.
    pub(super) batch: u32,
    /// The milliseconds of a whole step, as `top` shows them.
    pub(super) step_ms: f64,
    /// The milliseconds of its own computation in a step.
    pub(super) compute_ms: f64,
}

/// The pace of each replica that measures its computation in this start, since the batch sizes last changed.
pub(super) fn paces(series: &JobSeries, start: Option<Generation>) -> BTreeMap<ReplicaId, Pace> {
    let pace = |report: ShownReport<'_>| {
        let Done { steps, compute_us, .. } = Done::until(report);
        let is_measured = Some(report.generation) == start && steps > 0 && compute_us > 0;
        let compute_ms = ratio(compute_us, steps) / 1000.0;
        let Progress { batch, wall_us, steps: all, .. } = *report.progress;
        is_measured.then(|| Pace { batch, step_ms: ratio(wall_us, all) / 1000.0, compute_ms })
    };
    let newest = series.replicas.iter().filter_map(|of| Some((of.replica, pace(newest_report(&of.points)?)?)));
    newest.collect()
}

/// A sentence such as `worker-2 needs 1.8 times the median for a sample, for 4 m 10 s`, if one replica is slow in this
/// start.
pub(super) fn straggler(series: &JobSeries, start: Option<Generation>, now: UnixMillis) -> Option<String> {
    let is_present = |points: &[SeriesPoint]| newest_report(points).is_some_and(|it| Some(it.generation) == start);
    let present = series.replicas.iter().filter(|of| is_present(&of.points));
    let all: Vec<(ReplicaId, Vec<Interval>)> = present.map(|of| (of.replica, intervals(&of.points))).collect();
    let (slowest, times) = slowest(&all, 0)?;
    let since = (0..).map_while(|nth| slowest_is(&all, nth, slowest)).last()?;
    let age = now.since(since);
    Some(format!("{slowest} needs {times:.1} times the median for a sample, for {}", spelled(age)))
}

/// The time between two reports of one replica.
struct Interval {
    since: UnixMillis,
    /// Microseconds of the replica's computation for a sample.
    per_sample: f64,
}

/// The intervals of the newest start and the newest batch sizes, newest first.
fn intervals(points: &[SeriesPoint]) -> Vec<Interval> {
    // A metric adds a point with the totals of the previous report. So does a report of a script that has made no step.
    let mut reports: Vec<ShownReport<'_>> = points.iter().filter_map(ShownReport::of).collect();
    reports.dedup_by_key(|report| (report.generation, report.progress.split, report.progress.samples));
    let interval = |pair: &[ShownReport<'_>]| {
        let (older, newer) = (pair[0], pair[1]);
        let Done { samples, compute_us, .. } = Done::between(older, newer)?;
        let per_sample = ratio(compute_us, samples);
        (samples > 0 && compute_us > 0).then_some(Interval { since: older.at, per_sample })
    };
    reports.windows(2).rev().map_while(interval).collect()
}

/// The replica that was slow in its nth newest interval, and its time as a multiple of the median.
fn slowest(all: &[(ReplicaId, Vec<Interval>)], nth: usize) -> Option<(ReplicaId, f64)> {
    let times: Option<Vec<f64>> = all.iter().map(|(_, intervals)| Some(intervals.get(nth)?.per_sample)).collect();
    let mut times = times.filter(|times| times.len() > 1)?;
    let slowest = (0..times.len()).max_by(|&a, &b| times[a].total_cmp(&times[b]))?;
    let longest = times[slowest];
    times.sort_by(f64::total_cmp);
    let times_the_median = longest / times[(times.len() - 1) / 2];
    (times_the_median >= SLOW).then_some((all[slowest].0, times_the_median))
}

/// When the nth newest interval of this replica began, if the replica was the slow one.
fn slowest_is(all: &[(ReplicaId, Vec<Interval>)], nth: usize, replica: ReplicaId) -> Option<UnixMillis> {
    slowest(all, nth).filter(|(slowest, _)| *slowest == replica)?;
    let (_, intervals) = all.iter().find(|(known, _)| *known == replica)?;
    Some(intervals[nth].since)
}

#[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
/// The quotient of two numbers.
pub(crate) fn ratio(sum: u64, count: u64) -> f64 {
    sum as f64 / count as f64
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A report at `at` seconds, after this many steps of 32 samples with `us` microseconds for each sample so far.
    fn point(at: u64, steps: u64, compute_us: u64, split: u64) -> Value {
        json!({"at": at * 1000, "generation": "1.2", "progress": {
            "step": steps, "steps": steps, "batch": 32, "samples": steps * 32, "compute_us": compute_us, "wall_us": compute_us * 5 / 4, "split": split,
        }})
    }

    fn series(replicas: &[(&str, Vec<Value>)]) -> JobSeries {
        let replicas: Vec<Value> =
            replicas.iter().map(|(name, points)| json!({"replica": name, "points": points})).collect();
        serde_json::from_value(json!({ "replicas": replicas })).unwrap()
    }

    #[test]
    fn a_slow_replica_is_named_with_the_time_since_when_it_has_been_slow() {
        let usual = || vec![point(0, 0, 0, 0), point(60, 100, 320_000, 0), point(120, 200, 640_000, 0)];
        let late = vec![point(0, 0, 0, 0), point(60, 100, 320_000, 0), point(120, 200, 320_000 + 576_000, 0)];
        let slow = vec![point(0, 0, 0, 0), point(60, 100, 480_000, 0), point(120, 200, 480_000 + 576_000, 0)];
        let start = "1.2".parse().ok();
        let told = |third: Vec<Value>| {
            let replicas = [("worker-0", usual()), ("worker-1", usual()), ("worker-2", third)];
            straggler(&series(&replicas), start, UnixMillis(300_000))
        };
        assert_eq!(told(usual()), None);
        assert_eq!(told(late).as_deref(), Some("worker-2 needs 1.8 times the median for a sample, for 4 m 00 s"));
        assert_eq!(told(slow).as_deref(), Some("worker-2 needs 1.8 times the median for a sample, for 5 m 00 s"));
        let of_other_sizes = vec![point(0, 0, 0, 0), point(60, 100, 320_000, 0), point(120, 200, 900_000, 16)];
        assert_eq!(told(of_other_sizes), None, "totals of different sizes are compared");
        assert_eq!(told(vec![point(120, 200, 900_000, 0)]), None, "one report has no interval");
        assert_eq!(straggler(&series(&[("worker-0", usual())]), start, UnixMillis(300_000)), None);
        let metric = [point(60, 100, 320_000, 0), point(120, 200, 640_000, 0), point(121, 200, 640_000, 0)];
        assert!(told([point(0, 0, 0, 0)].into_iter().chain(metric).collect()).is_none());
        let other = "1.3".parse().ok();
        let slow = [("worker-0", usual()), ("worker-1", vec![point(0, 0, 0, 0), point(60, 9, 320_000, 0)])];
        assert!(straggler(&series(&slow), start, UnixMillis(0)).is_some());
        assert_eq!(straggler(&series(&slow), other, UnixMillis(0)), None, "the reports are of an earlier start");
    }

    #[test]
    fn the_pace_is_that_of_the_present_start() {
        let all = series(&[("worker-0", vec![point(60, 100, 320_000, 0)]), ("worker-1", vec![point(60, 100, 0, 0)])]);
        let worker = |index| ReplicaId { role: protocol::ids::Role::Worker, index };
        let pace = Pace { batch: 32, step_ms: 4.0, compute_ms: 3.2 };
        assert_eq!(paces(&all, Some("1.2".parse().unwrap())), BTreeMap::from([(worker(0), pace)]));
        assert!(paces(&all, Some("1.3".parse().unwrap())).is_empty());
    }
}
