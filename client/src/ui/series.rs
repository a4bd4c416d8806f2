//! The reports of a job's scripts, collected from several answers of the master.

use std::collections::BTreeMap;

use protocol::ids::ReplicaId;
use protocol::progress::{JobSeries, Progress, ReplicaSeries, SeriesPoint};

/// Maximum number of points of a replica. Above it, every second point is dropped.
const POINTS_MAX: usize = 512;

/// Maximum number of points of all replicas, if no replica has more than [`POINTS_MIN`].
const ALL_POINTS_MAX: usize = 8192;
const POINTS_MIN: usize = 16;
/// Number of points for sentences about the present.
const TAIL: usize = 64;

/// The reports of each replica, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Series(BTreeMap<ReplicaId, Vec<SeriesPoint>>);

impl Series {
    /// Adds an answer with later points.
    pub(super) fn add(&mut self, answer: JobSeries) {
        let replicas = self.0.len().max(answer.replicas.len()).max(1);
        let most = (ALL_POINTS_MAX / replicas).clamp(POINTS_MIN, POINTS_MAX);
        for ReplicaSeries { replica, points } in answer.replicas {
            let kept = self.0.entry(replica).or_default();
            kept.extend(points);
            while kept.len() > most {
                let last = kept.len() - 1;
                let mut place = 0..;
                kept.retain(|_| place.next().is_some_and(|place: usize| place.is_multiple_of(2) || place == last));
            }
        }
    }

    /// When the master received the newest point.
    pub(super) fn newest_at(&self) -> Option<u64> {
        self.0.values().filter_map(|points| points.last()).map(|point| point.at.0).max()
    }

    /// The newest report of a replica.
    pub(super) fn newest(&self, replica: ReplicaId) -> Option<&Progress> {
        Some(&self.0.get(&replica)?.last()?.progress)
    }

    /// The replicas with their points.
    pub(super) fn replicas(&self) -> impl DoubleEndedIterator<Item = (ReplicaId, &[SeriesPoint])> {
        self.0.iter().map(|(replica, points)| (*replica, points.as_slice()))
    }

    /// The newest points of each replica, at most [`TAIL`].
    pub(super) fn tail(&self) -> JobSeries {
        let newest = |(replica, points): (_, &[SeriesPoint])| {
            let points = points[points.len().saturating_sub(TAIL)..].to_vec();
            ReplicaSeries { replica, points }
        };
        JobSeries { replicas: self.replicas().map(newest).collect(), usage: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(steps: std::ops::Range<u64>) -> JobSeries {
        let points = steps.map(|step| json!({"at": step, "generation": "1.1", "progress": {"step": step}}));
        let points = points.collect::<Vec<_>>();
        serde_json::from_value(json!({"replicas": [{"replica": "worker-0", "points": points}]})).unwrap()
    }

    #[test]
    fn a_long_series_is_thinned_and_keeps_its_first_and_its_newest_point() {
        let mut series = Series::default();
        for begin in (0..5000).step_by(100) {
            series.add(answer(begin..begin + 100));
        }
        let (_, points) = series.replicas().next().unwrap();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&points.len()), "{}", points.len());
        assert_eq!((points[0].at.0, series.newest_at()), (0, Some(4999)));
        assert!(points.is_sorted_by_key(|point| point.at.0));
    }
}
