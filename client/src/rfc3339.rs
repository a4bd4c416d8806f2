//! Times as users read and write them: RFC 3339.

use std::time::{Duration, UNIX_EPOCH};

use protocol::ids::UnixMillis;

pub(crate) use crate::cluster::moment as parsed;

/// Number of characters that [`written`] returns.
pub(crate) const WIDTH: usize = 24;

/// The first time after the year 9999, which RFC 3339 cannot express.
const YEAR_10000: UnixMillis = UnixMillis(253_402_300_800_000);

/// The time in UTC with milliseconds. `None` for a time that RFC 3339 cannot express.
pub(crate) fn written(time: UnixMillis) -> Option<String> {
    let since_epoch = Duration::from_millis(time.0);
    (time < YEAR_10000).then(|| humantime::format_rfc3339_millis(UNIX_EPOCH + since_epoch).to_string())
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
            assert_eq!(parsed(text).and_then(written).as_deref(), Some(again));
            assert_eq!(again.len(), WIDTH);
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in ["tomorrow", "2026-11-24", "2026-11-24T00:34:49", "1969-12-31T23:59:59Z", ""] {
            assert_eq!(parsed(text), None, "{text}");
        }
        for time in [YEAR_10000, UnixMillis(u64::MAX)] {
            assert_eq!(written(time), None);
        }
    }
}
