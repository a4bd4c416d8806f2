//! Measured values and their formats.

use std::io::Write as _;
use std::time::Duration;

/// Number of runs of most measurements. The result is the median of the runs.
pub(crate) const RUNS: usize = 5;

/// A row of the table. `bare` is the value with which Muster's value is compared, if there is one. `bare_is` says what
/// has this value, such as `python3 -m http.server`.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) muster: Figure,
    pub(crate) bare: Option<Figure>,
    pub(crate) bare_is: &'static str,
}

/// A measured value with its unit.
#[derive(Debug, Clone)]
pub(crate) enum Figure {
    Time(Duration),
    /// A time that is shown in microseconds.
    Moment(Duration),
    /// One time for each run. If both values of a row have the same number of times, each run has its own ratio. The
    /// row's ratio is then the median of these ratios.
    Times(Vec<Duration>),
    Bytes(u64),
    Count(u64),
}

impl Row {
    /// A row without a value to compare with.
    pub(crate) fn new(what: impl Into<String>, muster: Figure) -> Self {
        Self { what: what.into(), muster, bare: None, bare_is: "" }
    }

    /// The same row, compared with the value `bare` of `bare_is`.
    pub(crate) fn against(self, bare: Figure, bare_is: &'static str) -> Self {
        Self { bare: Some(bare), bare_is, ..self }
    }

    pub(crate) fn cells(&self) -> [String; 5] {
        let ratio = self.bare.as_ref().map(|bare| self.muster.ratio_to(bare));
        let bare = self.bare.as_ref().map(Figure::shown);
        [
            self.what.clone(),
            self.muster.shown(),
            bare.unwrap_or_default(),
            ratio.unwrap_or_default(),
            self.bare_is.into(),
        ]
    }
}

/// Adds rows to the table. Also prints them at once, because the remaining rows may take minutes.
pub(crate) fn note(rows: &mut Vec<Row>, measured: Vec<Row>) -> anyhow::Result<()> {
    for row in &measured {
        writeln!(std::io::stderr(), "{}", row.cells().join(" | "))?;
    }
    rows.extend(measured);
    Ok(())
}

impl Figure {
    fn value(&self) -> f64 {
        match self {
            Self::Time(time) | Self::Moment(time) => time.as_secs_f64(),
            Self::Times(times) => median(times.clone()).as_secs_f64(),
            #[expect(clippy::cast_precision_loss, reason = "a ratio is shown with two digits")]
            Self::Bytes(count) | Self::Count(count) => *count as f64,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Time(_) => format!("{:.1} ms", self.value() * 1e3),
            Self::Moment(_) => format!("{:.1} µs", self.value() * 1e6),
            Self::Times(times) => {
                let slow = quantile(times, 90).as_secs_f64();
                format!("{:.1} ms, 90 %: {:.1} ms", self.value() * 1e3, slow * 1e3)
            }
            Self::Bytes(_) => format!("{:.2} MB", self.value() / 1e6),
            Self::Count(count) => count.to_string(),
        }
    }

    fn ratio_to(&self, bare: &Self) -> String {
        if let (Self::Times(times), Self::Times(others)) = (self, bare)
            && times.len() == others.len()
        {
            let ratio = |(time, other): (&Duration, &Duration)| time.as_secs_f64() / other.as_secs_f64();
            return interval(times.iter().zip(others).map(ratio).collect());
        }
        format!("{:.2}", self.value() / bare.value())
    }
}

/// Returns the median of some ratios, with a confidence interval. With 6 ratios or more, the confidence level is at
/// least 95 %.
fn interval(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let count = ratios.len();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small count, and the conversion of a negative number is 0"
    )]
    // The number of ratios below the true median has a binomial distribution with p = 1/2. `rank` is the lower 2.5 %
    // quantile of this distribution, by the normal approximation, rounded down so that the interval becomes wider. The
    // interval begins at the ratio with this rank, counted from 1.
    let rank = ((count as f64 - 1.96 * (count as f64).sqrt()) / 2.0).floor() as usize;
    let low = rank.saturating_sub(1);
    let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
    format!("{:.2} ({:.2} to {:.2})", at(count / 2), at(low), at(count.saturating_sub(low + 1)))
}

/// Returns the median of some times.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Returns a percentile: the shortest time in `times` such that at least `percent` % of the times are not longer.
fn quantile(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get((times.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}
