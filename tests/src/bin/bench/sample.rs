//! Measured values and their formats.

use std::time::Duration;

/// Runs of each measurement. The result is their median.
pub(crate) const RUNS: usize = 5;

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) muster: Figure,
    pub(crate) bare: Option<Figure>,
    pub(crate) bare_is: &'static str,
}

/// A measured value with its unit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Figure {
    Time(Duration),
    /// A time that is shown in microseconds.
    Moment(Duration),
    Bytes(u64),
    Count(u64),
}

impl Row {
    pub(crate) fn cells(&self) -> [String; 5] {
        let ratio = self.bare.map(|bare| format!("{:.2}", self.muster.value() / bare.value()));
        let bare = self.bare.map(|bare| bare.shown());
        [
            self.what.clone(),
            self.muster.shown(),
            bare.unwrap_or_default(),
            ratio.unwrap_or_default(),
            self.bare_is.into(),
        ]
    }
}

impl Figure {
    fn value(self) -> f64 {
        match self {
            Self::Time(time) | Self::Moment(time) => time.as_secs_f64(),
            #[expect(clippy::cast_precision_loss, reason = "a ratio of two digits")]
            Self::Bytes(count) | Self::Count(count) => count as f64,
        }
    }

    fn shown(self) -> String {
        match self {
            Self::Time(_) => format!("{:.1} ms", self.value() * 1e3),
            Self::Moment(_) => format!("{:.1} µs", self.value() * 1e6),
            Self::Bytes(_) => format!("{:.2} MB", self.value() / 1e6),
            Self::Count(count) => count.to_string(),
        }
    }
}

/// The median of some times.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
