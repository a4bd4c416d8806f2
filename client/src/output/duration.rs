//! Durations as people read them.

use std::time::Duration;

/// A duration as text: `0.02 s`, `1.8 s`, `2 m 05 s`, `1 h 02 m` or `3 d 04 h`.
pub(crate) fn spelled(duration: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let millis = duration.as_millis();
    // The limits allow for rounding: 59.96 s must be "1 m 00 s", not "60.0 s".
    if millis < 95 {
        return format!("{:.2} s", duration.as_secs_f64());
    }
    if millis < 59_950 {
        return format!("{:.1} s", duration.as_secs_f64());
    }
    let seconds = duration.saturating_add(Duration::from_millis(500)).as_secs();
    match seconds {
        0..HOUR => format!("{} m {:02} s", seconds / MINUTE, seconds % MINUTE),
        HOUR..DAY => format!("{} h {:02} m", seconds / HOUR, seconds % HOUR / MINUTE),
        DAY.. => format!("{} d {:02} h", seconds / DAY, seconds % DAY / HOUR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_the_units_that_fit_its_length() {
        for (millis, text) in [
            (0, "0.00 s"),
            (20, "0.02 s"),
            (94, "0.09 s"),
            (95, "0.1 s"),
            (1_840, "1.8 s"),
            (59_949, "59.9 s"),
            (59_950, "1 m 00 s"),
            (125_000, "2 m 05 s"),
            (3_599_499, "59 m 59 s"),
            (3_599_500, "1 h 00 m"),
            (3_720_000, "1 h 02 m"),
            (273_600_000, "3 d 04 h"),
        ] {
            assert_eq!(spelled(Duration::from_millis(millis)), text, "{millis} ms");
        }
    }
}
