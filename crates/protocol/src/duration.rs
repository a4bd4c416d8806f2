//! Durations as users write them in the flags of client and agent, such as `90s` or `1m30s`.

use std::str::FromStr;

use crate::ensure::ensure;

/// A duration of whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WholeSeconds(pub u32);

/// Why a text is not a duration of whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    /// humantime cannot read the text, for example because it has no unit.
    #[error("use a number and a unit, such as 90s, 10m or 2h")]
    Shape,
    /// The duration has a fraction of a second.
    #[error("use whole seconds, such as 1s, 90s or 10m")]
    Fraction,
    /// The duration has more than `u32::MAX` seconds.
    #[error("the maximum is {}s", u32::MAX)]
    TooLong,
}

impl FromStr for WholeSeconds {
    type Err = BadDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time = humantime::parse_duration(text).map_err(|_| BadDuration::Shape)?;
        ensure!(time.subsec_nanos() == 0, BadDuration::Fraction);
        time.as_secs().try_into().map(Self).map_err(|_| BadDuration::TooLong)
    }
}
