//! Charts of a job's series: the numbers that scripts log, the time of a step, the batch sizes, and what the runs use.
//! Pure.

use std::time::Duration;

use protocol::ids::ReplicaId;
use protocol::progress::SeriesPoint;

use super::series::Series;
use crate::output::{Done, ShownReport, ratio, shortened, spelled};

/// Maximum points of each part of a line. If there are more, neighbours are averaged.
const POINTS_MAX: usize = 300;
/// Maximum lines of a chart that has a line for each replica. With more replicas, a chart shows the range.
const LINES_MAX: usize = 8;
/// Maximum rows of the table behind a chart.
const ROWS_MAX: usize = 20;
/// Width and height of a chart, in units of its own.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// A point: seconds since the first point of all, and the value.
type Point = (f64, f64);

/// A line of a chart before it is drawn.
struct Curve {
    label: String,
    /// The points of each start.
    starts: Vec<Vec<Point>>,
}

/// A chart that is ready to be shown.
pub(super) struct Chart {
    pub(super) title: String,
    /// The largest and the smallest value, as text.
    pub(super) top: String,
    pub(super) bottom: String,
    /// The time from the first point of all charts to the last point of this chart, as text.
    pub(super) length: String,
    pub(super) lines: Vec<DrawnLine>,
    /// The table behind the chart: the time, and a value for each line.
    pub(super) rows: Vec<(String, Vec<String>)>,
}

/// A drawn line.
pub(super) struct DrawnLine {
    pub(super) label: String,
    /// Number of the line's colour.
    pub(super) colour: usize,
    /// The newest value, as text.
    pub(super) newest: String,
    /// The corners of each part of the line, as the attribute `points` of an SVG polyline.
    pub(super) parts: Vec<String>,
}

/// All charts for which there are points.
pub(super) fn charts(series: &Series) -> Vec<Chart> {
    let begin = series.replicas().filter_map(|(_, points)| points.first()).map(|point| point.at.0).min().unwrap_or(0);
    let mut charts = values(series, begin);
    charts.extend(chart("Time per step, in ms".to_owned(), &per_replica(series, begin, step_times)));
    let of_each = |number: fn(&SeriesPoint) -> Option<f64>| {
        per_replica(series, begin, |points| points.iter().map(number).collect())
    };
    let batches = chart("Batch size, in samples".to_owned(), &of_each(batch));
    charts.extend(batches.filter(|chart| chart.top != chart.bottom));
    charts.extend(chart("Processor time, in percent of a core".to_owned(), &of_each(cpu_percent)));
    charts.extend(chart("Memory, in MiB".to_owned(), &of_each(mebibytes)));
    charts
}

fn batch(point: &SeriesPoint) -> Option<f64> {
    point.progress.as_ref().filter(|progress| progress.batch > 0).map(|progress| f64::from(progress.batch))
}

fn cpu_percent(point: &SeriesPoint) -> Option<f64> {
    point.cpu_percent.map(f64::from)
}

fn mebibytes(point: &SeriesPoint) -> Option<f64> {
    point.rss_bytes.map(|bytes| ratio(bytes, 1 << 20))
}

/// The numbers that a script had logged, by name.
fn logged(point: &SeriesPoint) -> impl Iterator<Item = (&str, f64)> {
    point.progress.iter().flat_map(|progress| progress.values.iter())
}

/// A chart for each number of the first replica that logs numbers. The loss comes first.
fn values(series: &Series, begin: u64) -> Vec<Chart> {
    let with_values = |(_, points): &(ReplicaId, &[SeriesPoint])| points.iter().flat_map(logged).next().is_some();
    let Some((replica, points)) = series.replicas().find(with_values) else { return vec![] };
    let mut names: Vec<&str> = points.iter().flat_map(logged).map(|(name, _)| name).collect();
    names.sort_unstable_by_key(|name| (!name.contains("loss"), *name));
    names.dedup();
    let of = |name: &str| {
        let number = |point: &SeriesPoint| logged(point).find(|(it, _)| *it == name).map(|(_, number)| number);
        let starts = by_start(points, begin, points.iter().map(number));
        chart(format!("{name} of {replica}"), &[Curve { label: name.to_owned(), starts }])
    };
    names.into_iter().filter_map(of).collect()
}

/// A curve for each replica; or, if there are many, the smallest, the median and the largest value.
fn per_replica(series: &Series, begin: u64, numbers: impl Fn(&[SeriesPoint]) -> Vec<Option<f64>>) -> Vec<Curve> {
    let curves = series.replicas().map(|(replica, points)| {
        let starts = by_start(points, begin, numbers(points).into_iter());
        Curve { label: replica.to_string(), starts }
    });
    let curves: Vec<Curve> = curves.filter(|curve| !curve.starts.is_empty()).collect();
    if curves.len() > LINES_MAX { range(&curves) } else { curves }
}

/// The milliseconds of a step between each report and the report before it.
fn step_times(points: &[SeriesPoint]) -> Vec<Option<f64>> {
    let mut before = None;
    let time = |point| {
        let report = ShownReport::of(point)?;
        let since = before.replace(report).and_then(|before| Done::between(before, report));
        let Done { steps, wall_us, .. } = since.unwrap_or_else(|| Done::until(report));
        (steps > 0).then(|| ratio(wall_us, steps) / 1000.0)
    };
    points.iter().map(time).collect()
}

/// The known numbers with their times, in a list for each start.
fn by_start(points: &[SeriesPoint], begin: u64, numbers: impl Iterator<Item = Option<f64>>) -> Vec<Vec<Point>> {
    let mut starts: Vec<Vec<Point>> = Vec::new();
    let mut newest = None;
    for (point, number) in points.iter().zip(numbers) {
        let Some(number) = number.filter(|number| number.is_finite()) else { continue };
        if newest != Some(point.generation) {
            newest = Some(point.generation);
            starts.push(Vec::new());
        }
        let seconds = Duration::from_millis(point.at.0.saturating_sub(begin)).as_secs_f64();
        starts.last_mut().into_iter().for_each(|start| start.push((seconds, number)));
    }
    starts
}

/// The smallest, the median and the largest value of many curves, for each group of points with similar times.
fn range(curves: &[Curve]) -> Vec<Curve> {
    let mut all: Vec<Point> = curves.iter().flat_map(|curve| curve.starts.iter().flatten().copied()).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let size = all.len().div_ceil(POINTS_MAX).max(curves.len());
    let pick = |label: &str, at: fn(usize) -> usize| {
        let of = |bucket: &[Point]| {
            let mut values: Vec<f64> = bucket.iter().map(|(_, value)| *value).collect();
            values.sort_by(f64::total_cmp);
            (bucket[0].0, values[at(values.len())])
        };
        Curve { label: label.to_owned(), starts: vec![all.chunks(size).map(of).collect()] }
    };
    vec![pick("largest", |len| len - 1), pick("median", |len| len / 2), pick("smallest", |_| 0)]
}

/// Averages neighbours, so that at most [`POINTS_MAX`] points are left.
fn thinned(points: &[Point]) -> Vec<Point> {
    let mean = |bucket: &[Point]| {
        #[expect(clippy::cast_precision_loss, reason = "a bucket has few points")]
        let count = bucket.len() as f64;
        // The sum of large numbers may be infinite, so each number is divided first.
        bucket.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0 / count, sum.1 + point.1 / count))
    };
    points.chunks(points.len().div_ceil(POINTS_MAX).max(1)).map(mean).collect()
}

/// Draws curves. `None` if no curve has two points.
fn chart(title: String, curves: &[Curve]) -> Option<Chart> {
    let points = || curves.iter().flat_map(|curve| curve.starts.iter().flatten());
    if !curves.iter().flat_map(|curve| &curve.starts).any(|start| start.len() > 1) {
        return None;
    }
    let end = points().map(|point| point.0).fold(0.0, f64::max);
    let low = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = points().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    // A constant is a line in the middle. The difference of two large numbers may be infinite, so each is halved first.
    let height = |value: f64| {
        let share = if high > low { (high / 2.0 - value / 2.0) / (high / 2.0 - low / 2.0) } else { 0.5 };
        HEIGHT * share.clamp(0.0, 1.0)
    };
    let corner = |(x, y): Point| format!("{:.1},{:.1}", if end > 0.0 { WIDTH * x / end } else { 0.0 }, height(y));
    let draw = |start: &Vec<Point>| thinned(start).into_iter().map(corner).collect::<Vec<_>>().join(" ");
    let newest = |curve: &Curve| curve.starts.last().and_then(|start| start.last()).map(|point| shortened(point.1));
    let lines = curves.iter().enumerate().map(|(colour, curve)| DrawnLine {
        label: curve.label.clone(),
        colour,
        newest: newest(curve).unwrap_or_default(),
        parts: curve.starts.iter().map(draw).collect(),
    });
    let (top, bottom) = (shortened(high), shortened(low));
    let length = spelled(Duration::from_secs_f64(end));
    Some(Chart { title, top, bottom, length, lines: lines.collect(), rows: rows(curves, end) })
}

/// The rows of the table, at equal distances in time. A row shows the last value of each curve up to the row's time.
fn rows(curves: &[Curve], end: f64) -> Vec<(String, Vec<String>)> {
    let longest = curves.iter().map(|curve| curve.starts.iter().map(Vec::len).sum::<usize>()).max().unwrap_or(0);
    let count = longest.min(ROWS_MAX);
    let row = |index: usize| {
        #[expect(clippy::cast_precision_loss, reason = "there are few rows")]
        let time = end * (index as f64) / (count.max(2) - 1) as f64;
        let before = |curve: &Curve| {
            let points = curve.starts.iter().flatten().take_while(|point| point.0 <= time + 1e-9);
            points.last().map(|point| shortened(point.1)).unwrap_or_default()
        };
        (spelled(Duration::from_secs_f64(time)), curves.iter().map(before).collect())
    };
    (0..count).map(row).collect()
}

#[cfg(test)]
#[path = "charts_tests.rs"]
mod tests;
