//! Times as users and Kubernetes write them: RFC 3339.

use k8s_openapi::jiff::Timestamp;
use protocol::ids::UnixMillis;

/// Number of characters that [`written`] returns.
pub const WIDTH: usize = 24;

/// Reads a time with `Z` or an offset. `None` if the text is not such a time, or is before 1970.
pub fn time_of(text: &str) -> Option<UnixMillis> {
    let at = text.parse::<Timestamp>().ok()?;
    u64::try_from(at.as_millisecond()).ok().map(UnixMillis)
}

/// The time in UTC with milliseconds. `None` for a time that RFC 3339 cannot express.
pub fn written(UnixMillis(millis): UnixMillis) -> Option<String> {
    let at = Timestamp::from_millisecond(i64::try_from(millis).ok()?).ok()?;
    Some(format!("{at:.3}"))
}

/// The time as Kubernetes writes it, in whole seconds.
pub(crate) fn timestamp(time: UnixMillis) -> String {
    let seconds = i64::try_from(time.0 / 1000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_any_offset_and_written_in_utc_with_milliseconds() {
        for (text, again) in [
            ("2026-11-24T00:34:49Z", "2026-11-24T00:34:49.000Z"),
            ("2026-11-24T01:34:49.1239+01:00", "2026-11-24T00:34:49.123Z"),
        ] {
            assert_eq!(time_of(text).and_then(written).as_deref(), Some(again));
            assert_eq!(again.len(), WIDTH);
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in ["tomorrow", "2026-11-24", "2026-11-24T00:34:49", "1969-12-31T23:59:59Z", ""] {
            assert_eq!(time_of(text), None, "{text}");
        }
        for millis in [253_402_300_800_000, u64::MAX] {
            assert_eq!(written(UnixMillis(millis)), None);
        }
    }
}
