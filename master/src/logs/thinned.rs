//! The points of one replica. Their number is limited, however long the job runs.

use protocol::ids::{Generation, UnixMillis};
#[cfg(test)]
use protocol::progress::Progress;
use protocol::progress::SeriesPoint;

/// A point, and when it was added. Numbers of the output are added later than their lines were printed.
#[derive(Debug, Clone)]
pub(super) struct Added {
    pub(super) at: UnixMillis,
    pub(super) point: SeriesPoint,
}

/// All points of a replica. Points with a report are thinned separately. Otherwise frequent points without a report
/// would displace rare numbers from the output.
#[derive(Debug, Default)]
pub(super) struct Points {
    with_report: Thinned,
    without_report: Thinned,
}

impl Points {
    /// Adds a point. Then drops points until both lists together have at most `max` points, not counting
    /// [`Thinned::newest`].
    pub(super) fn push(&mut self, added: Added, max: usize) {
        let Self { with_report, without_report } = self;
        if added.point.progress.is_some() { &mut *with_report } else { &mut *without_report }.push(added);
        while with_report.kept.len() + without_report.kept.len() > max {
            let is_longer = with_report.kept.len() >= without_report.kept.len();
            if is_longer { &mut *with_report } else { &mut *without_report }.halve();
        }
    }

    /// The newest point with a report of this start, at or before this time.
    pub(super) fn report_at(&self, generation: Generation, at: UnixMillis) -> Option<&SeriesPoint> {
        let points = self.with_report.all().map(|added| &added.point);
        points.filter(|point| point.generation == generation && point.at <= at).max_by_key(|point| point.at)
    }

    /// The points that were added after the time `after`, oldest first. With `tail`, only the newest points: this many
    /// with a report, and this many without a report.
    pub(super) fn shown(&self, after: Option<UnixMillis>, tail: Option<usize>) -> Vec<SeriesPoint> {
        let all = self.with_report.all().chain(self.without_report.all());
        let new = all.filter(|added| after.is_none_or(|after| added.at > after));
        let mut points: Vec<SeriesPoint> = new.map(|added| added.point.clone()).collect();
        points.sort_by_key(|point| (point.generation, point.at));
        newest(points, tail)
    }
}

/// The newest of these points: with `tail`, this many with a report, and this many without a report. `points` and the
/// result are in order, oldest first.
pub fn newest(points: Vec<SeriesPoint>, tail: Option<usize>) -> Vec<SeriesPoint> {
    let Some(tail) = tail else { return points };
    let mut room = [tail; 2];
    let mut chosen: Vec<SeriesPoint> = points
        .into_iter()
        .rev()
        .filter(|point| {
            let room = &mut room[usize::from(point.progress.is_some())];
            let is_chosen = *room > 0;
            *room = room.saturating_sub(1);
            is_chosen
        })
        .collect();
    chosen.reverse();
    chosen
}

/// Every n-th point that was added, and the newest point. When the list is full, every second point of the list is
/// dropped, and n doubles.
#[derive(Debug, Default)]
struct Thinned {
    kept: Vec<Added>,
    /// The newest point, if it is not in `kept`.
    newest: Option<Added>,
    /// The number of points that were added, including the dropped points.
    pushed: usize,
    /// n is two to this power.
    halvings: u32,
}

impl Thinned {
    fn push(&mut self, added: Added) {
        self.newest = None;
        if self.pushed.is_multiple_of(1 << self.halvings) {
            self.kept.push(added);
        } else {
            self.newest = Some(added);
        }
        self.pushed += 1;
    }

    fn halve(&mut self) {
        let is_last_dropped = self.kept.len().is_multiple_of(2);
        let last = if is_last_dropped { self.kept.last().cloned() } else { None };
        let mut is_even = false;
        self.kept.retain(|_| {
            is_even = !is_even;
            is_even
        });
        self.halvings += 1;
        self.newest = self.newest.take().or(last);
    }

    fn all(&self) -> impl Iterator<Item = &Added> {
        self.kept.iter().chain(&self.newest)
    }
}

#[cfg(test)]
impl Points {
    pub(super) fn len(&self) -> usize {
        self.with_report.all().count() + self.without_report.all().count()
    }

    /// The bytes of all points in memory. `of_report` counts those of a report.
    pub(super) fn bytes(&self, of_report: impl Fn(&Progress) -> usize) -> usize {
        let of = |list: &Thinned| {
            let reports = list.all().filter_map(|added| added.point.progress.as_deref()).map(&of_report);
            list.kept.capacity() * size_of::<Added>() + reports.sum::<usize>()
        };
        size_of::<Self>() + of(&self.with_report) + of(&self.without_report)
    }
}
