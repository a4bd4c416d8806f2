//! The series of a job, collected from several answers of the master.

use std::collections::BTreeMap;

use protocol::ids::{ReplicaId, UnixMillis};
use protocol::progress::{JobSeries, Progress, ReplicaSeries, SeriesPoint};

use crate::output::newest_report;

/// Up to twice this number of points, a series is always small enough.
const POINTS_MIN: usize = 256;
/// Number of reports of a replica for sentences about the present.
const TAIL: usize = 64;

/// The points of each replica, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    replicas: BTreeMap<ReplicaId, Vec<SeriesPoint>>,
    /// When the master added the newest point.
    until: Option<UnixMillis>,
    /// The number of points in the newest answer with all points of the master.
    whole: usize,
}

impl Series {
    /// The time after which to ask for points. `None` asks for all points: if there are none yet, or if most points are
    /// later than the newest answer with all points. The master thins the points of a long job evenly, so a new answer
    /// with all points is smaller.
    pub(super) fn after(&self) -> Option<u64> {
        let is_small = self.len() <= 2 * self.whole.max(POINTS_MIN);
        if is_small { self.until.map(|until| until.0) } else { None }
    }

    /// Adds the answer to a request for the points after [`Self::after`].
    pub(super) fn add(&mut self, answer: JobSeries) {
        let is_whole = self.after().is_none();
        if is_whole {
            self.replicas.clear();
        }
        for ReplicaSeries { replica, points } in answer.replicas {
            let kept = self.replicas.entry(replica).or_default();
            kept.extend(points);
            // The master adds numbers of the output later than their lines were printed.
            kept.sort_by_key(|point| (point.generation, point.at));
        }
        self.until = answer.until.or(self.until);
        if is_whole {
            self.whole = self.len();
        }
    }

    fn len(&self) -> usize {
        self.replicas.values().map(Vec::len).sum()
    }

    /// The newest report of a replica.
    pub(super) fn newest(&self, replica: ReplicaId) -> Option<&Progress> {
        newest_report(self.replicas.get(&replica)?).map(|report| report.progress)
    }

    /// The replicas with their points.
    pub(super) fn replicas(&self) -> impl DoubleEndedIterator<Item = (ReplicaId, &[SeriesPoint])> {
        self.replicas.iter().map(|(replica, points)| (*replica, points.as_slice()))
    }

    /// For each replica, the newest points that have a report, at most [`TAIL`], and the newest point.
    pub(super) fn tail(&self) -> JobSeries {
        let newest = |(replica, points): (_, &[SeriesPoint])| {
            let last = points.iter().next_back().filter(|last| last.progress.is_none());
            let reports = points.iter().rev().filter(|point| point.progress.is_some()).take(TAIL);
            let mut points: Vec<SeriesPoint> = last.into_iter().chain(reports).cloned().collect();
            points.reverse();
            ReplicaSeries { replica, points }
        };
        JobSeries { replicas: self.replicas().map(newest).collect(), until: self.until, usage: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(times: impl IntoIterator<Item = u64>) -> JobSeries {
        let points: Vec<_> = times
            .into_iter()
            .map(|at| json!({"at": at, "generation": "1.1", "progress": {"step": at}, "rss_bytes": 1}))
            .collect();
        let until = points.last().map(|last| last["at"].clone());
        serde_json::from_value(json!({"replicas": [{"replica": "worker-0", "points": points}], "until": until}))
            .unwrap()
    }

    fn times(series: &Series) -> Vec<u64> {
        series.replicas().flat_map(|(_, points)| points).map(|point| point.at.0).collect()
    }

    #[test]
    fn a_long_series_is_read_again_from_the_master_which_thins_it() {
        let (mut series, mut whole) = (Series::default(), vec![]);
        for now in 0..5000 {
            if let Some(after) = series.after() {
                series.add(answer(after + 1..=now));
            } else {
                whole.push(now);
                let every = (now / 256 + 1).next_power_of_two();
                series.add(answer((0..now).filter(|at| at.is_multiple_of(every)).chain([now])));
            }
            assert!(series.len() <= 2 * (POINTS_MIN + 2), "{} points", series.len());
            let times = times(&series);
            assert_eq!((times.first(), times.last()), (Some(&0), Some(&now)));
        }
        assert!(whole.len() > 2 && whole.len() < 20, "read again at {whole:?}");
    }

    #[test]
    fn late_numbers_are_put_in_order_and_do_not_change_what_is_asked_next() {
        let mut series = Series::default();
        series.add(answer([10, 30]));
        let late = JobSeries { until: Some(UnixMillis(31)), ..answer([20]) };
        series.add(late);
        assert_eq!((times(&series), series.after()), (vec![10, 20, 30], Some(31)));
        series.add(serde_json::from_value(json!({"replicas": []})).unwrap());
        assert_eq!(series.after(), Some(31));
    }

    #[test]
    fn sentences_about_the_present_get_reports_although_usage_is_more_frequent() {
        let mut all = answer(0..100);
        let points = &mut all.replicas[0].points;
        points.iter_mut().skip(1).for_each(|point| point.progress = None);
        let mut series = Series::default();
        series.add(all);
        let tail: Vec<u64> = series.tail().replicas[0].points.iter().map(|point| point.at.0).collect();
        assert_eq!(tail, [0, 99]);
        assert_eq!(series.newest("worker-0".parse().unwrap()).and_then(|progress| progress.step), Some(0));
    }
}
