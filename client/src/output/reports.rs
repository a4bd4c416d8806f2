//! The reports in the series of a job: the newest ones, and what a replica did between two of them. Pure.

use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::progress::{JobSeries, Progress, SeriesPoint, Values};

/// A report of a script.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShownReport<'a> {
    /// When the master received it.
    pub(crate) at: UnixMillis,
    /// The start to which it belongs.
    pub(crate) generation: Generation,
    pub(crate) progress: &'a Progress,
}

impl<'a> ShownReport<'a> {
    /// The report in this point, if it has one.
    pub(crate) fn of(point: &'a SeriesPoint) -> Option<Self> {
        Some(Self { at: point.at, generation: point.generation, progress: point.progress.as_deref()? })
    }
}

/// The newest report in the points of a replica.
pub(crate) fn newest_report(points: &[SeriesPoint]) -> Option<ShownReport<'_>> {
    points.iter().rev().find_map(ShownReport::of)
}

/// The newest report of each replica in the newest start that the series contains.
pub(crate) fn newest_reports(series: &JobSeries) -> Vec<(ReplicaId, ShownReport<'_>)> {
    let of_points = series.replicas.iter().filter_map(|of| Some(of.points.last()?.generation));
    let newest = of_points.chain(series.usage.iter().map(|usage| usage.generation)).max();
    let reports = series.replicas.iter().filter_map(|of| Some((of.replica, newest_report(&of.points)?)));
    reports.filter(|(_, report)| Some(report.generation) == newest).collect()
}

/// The newest number of each name in the reports of this replica's newest start. Several reports are merged, because a
/// report of the helper muster.py does not repeat the numbers that were found in the output.
pub(crate) fn newest_values(series: &JobSeries, replica: ReplicaId) -> Values {
    let points = series.replicas.iter().filter(|of| of.replica == replica).flat_map(|of| &of.points);
    let reports: Vec<ShownReport<'_>> = points.filter_map(ShownReport::of).collect();
    let start = reports.last().map(|report| report.generation);
    let newest_first = reports.iter().rev().filter(|report| Some(report.generation) == start);
    newest_first.fold(Values::default(), |values, report| values.and(&report.progress.values))
}

/// The report with the greatest step. If several replicas have made this step, the report of the first of these
/// replicas.
pub(crate) fn furthest<'a>(reports: &[(ReplicaId, ShownReport<'a>)]) -> Option<(ReplicaId, ShownReport<'a>)> {
    reports.iter().rev().copied().max_by_key(|(_, report)| report.progress.step)
}

/// What a replica did in some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) steps: u64,
    pub(crate) samples: u64,
    /// Microseconds of the replica's own computation.
    pub(crate) compute_us: u64,
    /// Microseconds of the steps.
    pub(crate) wall_us: u64,
}

impl Done {
    /// What the replica did until this report, since its run began or the batch sizes last changed.
    pub(crate) fn until(report: ShownReport<'_>) -> Self {
        let Progress { steps, samples, compute_us, wall_us, .. } = *report.progress;
        Self { steps, samples, compute_us, wall_us }
    }

    /// What the replica did between two reports. `None` if their totals cannot be compared: they are of different
    /// starts or batch sizes, or the script has begun to count again.
    pub(crate) fn between(older: ShownReport<'_>, newer: ShownReport<'_>) -> Option<Self> {
        let of = |report: ShownReport<'_>| (report.generation, report.progress.split);
        let (before, now) = (Self::until(older), Self::until(newer));
        Some(Self {
            steps: now.steps.checked_sub(before.steps).filter(|_| of(older) == of(newer))?,
            samples: now.samples.checked_sub(before.samples)?,
            compute_us: now.compute_us.checked_sub(before.compute_us)?,
            wall_us: now.wall_us.checked_sub(before.wall_us)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn point(generation: &str, progress: &Value) -> SeriesPoint {
        serde_json::from_value(json!({"at": 1, "generation": generation, "progress": progress})).unwrap()
    }

    fn series(replicas: &Value, usage: &Value) -> JobSeries {
        serde_json::from_value(json!({"replicas": replicas, "usage": usage})).unwrap()
    }

    fn steps(series: &JobSeries) -> (Vec<u64>, Option<String>) {
        let reports = newest_reports(series);
        let all = reports.iter().filter_map(|(_, report)| report.progress.step).collect();
        let furthest = furthest(&reports);
        (all, furthest.and_then(|(_, report)| report.progress.values.iter().next().map(|(name, _)| name.to_owned())))
    }

    #[test]
    fn the_newest_reports_are_those_of_the_newest_start() {
        let report = |start: &str, step: u64, name: &str| json!({"at": step, "generation": start, "progress": {"step": step, "values": {name: 1}}});
        let used = |start: &str| json!({"at": 99, "generation": start, "rss_bytes": 7});
        let of = |points: &[&[Value]]| {
            let replica = |(index, points)| json!({"replica": format!("worker-{index}"), "points": points});
            Value::from(points.iter().enumerate().map(replica).collect::<Vec<_>>())
        };
        let (old, first) = ([report("1.1", 90, "old")], [report("1.2", 6, "early"), report("1.2", 7, "first")]);
        let (second, behind) = ([report("1.2", 7, "second"), used("1.2")], [report("1.2", 5, "behind")]);
        let all = series(&of(&[&old, &first, &second, &behind]), &json!([]));
        assert_eq!(steps(&all), (vec![7, 7, 5], Some("first".to_owned())));

        let restarted = series(&of(&[&old, &[report("1.1", 91, "old"), used("1.2")]]), &json!([]));
        assert_eq!(steps(&restarted), (vec![], None), "the newest start has no report yet");
        let usage = json!([{"replica": "worker-0", "at": 99, "generation": "1.2", "rss_bytes": 7}]);
        assert_eq!(steps(&series(&of(&[&old]), &usage)), (vec![], None));
        assert_eq!(steps(&series(&of(&[&old, &[]]), &json!([]))), (vec![90], Some("old".to_owned())));
        assert_eq!(steps(&series(&of(&[]), &json!([]))), (vec![], None));
    }

    #[test]
    fn only_reports_of_one_start_and_one_split_are_compared() {
        let totals = |steps: u64, split: u64| json!({"steps": steps, "samples": 32 * steps, "compute_us": 5 * steps, "wall_us": 9 * steps, "split": split});
        let older = point("1.1", &totals(10, 1));
        let between = |start: &str, newer: &Value| {
            let newer = point(start, newer);
            Done::between(ShownReport::of(&older)?, ShownReport::of(&newer)?)
        };
        let done = Done { steps: 4, samples: 128, compute_us: 20, wall_us: 36 };
        assert_eq!(between("1.1", &totals(14, 1)), Some(done));
        assert_eq!(between("1.1", &totals(10, 1)).map(|done| done.steps), Some(0));
        assert_eq!(between("1.2", &totals(14, 1)), None, "another start");
        assert_eq!(between("1.1", &totals(14, 2)), None, "another split");
        assert_eq!(between("1.1", &totals(9, 1)), None, "fewer steps");
        assert_eq!(between("1.1", &json!({"steps": 14, "split": 1})), None, "fewer samples");
        assert_eq!(between("1.1", &Value::Null), None, "no report");
    }
}
