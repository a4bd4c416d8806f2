//! The measurements of all ranks, in windows of at least 2 s and 8 steps.

use protocol::progress::Progress;

/// Minimum time of a window, in microseconds.
const WINDOW_US: u64 = 2_000_000;
/// Minimum number of steps of a window.
const WINDOW_STEPS: u64 = 8;
/// A rank without a step is silent if another rank has trained for this time, in microseconds.
const SILENCE_US: u64 = 20_000_000;
/// How many windows are kept.
const WINDOWS_KEPT: usize = 8;

/// A stretch of at least 2 s and 8 steps of each rank, with the same sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// Microseconds of each rank's own computation in a step; 0 if the script does not measure it.
    pub compute: Vec<f64>,
    /// Microseconds of a step, the mean over the ranks.
    pub wall: f64,
}

impl Window {
    /// Whether the scripts of all ranks measure their own computation.
    pub fn is_measured(&self) -> bool {
        self.compute.iter().all(|&compute| compute > 0.0)
    }

    /// The longest computation, in microseconds.
    pub fn longest(&self) -> f64 {
        longest(&self.compute)
    }
}

/// The longest of these times.
pub(super) fn longest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// The newest windows with one division of the batch.
#[derive(Debug, Clone)]
pub struct Windows {
    split: u64,
    ranks: Vec<Option<Reports>>,
    /// Newest first.
    closed: Vec<Window>,
}

/// The report of a rank at the beginning of a window, and the rank's newest report.
#[derive(Debug, Clone)]
struct Reports {
    first: Progress,
    newest: Progress,
}

impl Reports {
    fn steps(&self) -> u64 {
        self.newest.steps - self.first.steps
    }

    fn wall_us(&self) -> u64 {
        self.newest.wall_us - self.first.wall_us
    }

    fn compute_us(&self) -> u64 {
        self.newest.compute_us - self.first.compute_us
    }

    fn fill_a_window(&self) -> bool {
        self.steps() >= WINDOW_STEPS && self.wall_us() >= WINDOW_US
    }
}

impl Windows {
    /// Begins without windows, for version `split` of the sizes.
    pub fn new(ranks: usize, split: u64) -> Self {
        Self { split, ranks: vec![None; ranks], closed: vec![] }
    }

    /// The version of the sizes.
    pub fn split(&self) -> u64 {
        self.split
    }

    /// The closed windows, newest first, at most 8.
    pub fn closed(&self) -> &[Window] {
        &self.closed
    }

    /// Adds a report of a rank. Ignores reports with other sizes. Returns whether this report closes a window.
    pub fn hear(&mut self, rank: usize, report: &Progress) -> bool {
        let Some(known) = self.ranks.get_mut(rank).filter(|_| report.split == self.split) else { return false };
        match known {
            Some(reports) if is_later(report, &reports.newest) => reports.newest = report.clone(),
            // The first report, or a report of a new process, whose totals began at 0 again.
            _ => *known = Some(Reports { first: report.clone(), newest: report.clone() }),
        }
        known.as_ref().is_some_and(Reports::fill_a_window) && self.close()
    }

    /// The rank that has no step since the last window, if another rank has trained for long since then.
    pub fn silent(&self) -> Option<usize> {
        let waits = |reports: &Reports| reports.steps() >= WINDOW_STEPS && reports.wall_us() >= SILENCE_US;
        let is_silent = |reports: &Option<Reports>| reports.as_ref().is_none_or(|reports| reports.steps() == 0);
        let waits = self.ranks.iter().flatten().any(waits);
        waits.then(|| self.ranks.iter().position(is_silent)).flatten()
    }

    fn close(&mut self) -> bool {
        let all: Option<Vec<&Reports>> = self.ranks.iter().map(Option::as_ref).collect();
        let Some(all) = all.filter(|all| all.iter().all(|reports| reports.fill_a_window())) else { return false };
        let each = |of: fn(&Reports) -> u64| all.iter().map(move |reports| of(reports) as f64 / reports.steps() as f64);
        let wall = each(Reports::wall_us).sum::<f64>() / all.len() as f64;
        self.closed.insert(0, Window { compute: each(Reports::compute_us).collect(), wall });
        self.closed.truncate(WINDOWS_KEPT);
        for reports in self.ranks.iter_mut().flatten() {
            reports.first = reports.newest.clone();
        }
        true
    }
}

/// Whether each total of `new` is at least the total of `old`.
fn is_later(new: &Progress, old: &Progress) -> bool {
    new.steps >= old.steps && new.wall_us >= old.wall_us && new.compute_us >= old.compute_us
}
