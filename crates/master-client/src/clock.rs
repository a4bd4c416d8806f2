//! The master's clock. The client computes ages by this clock, because the clock of this machine may be wrong.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use protocol::ids::UnixMillis;
use reqwest::header::{DATE, HeaderMap};

/// Smaller differences between the clocks are ignored: a date has whole seconds, and the answer takes some time.
const NOTEWORTHY_MILLIS: i64 = 5_000;

/// How far the clock of the master is ahead of this machine's clock, by the newest answer. A global, because an age can be
/// computed long after the answer, and without its client.
static AHEAD_MILLIS: AtomicI64 = AtomicI64::new(0);

/// The time by the master's clock. Before the first answer, the time by this machine's clock.
pub fn now() -> UnixMillis {
    UnixMillis((here() + AHEAD_MILLIS.load(Ordering::Relaxed)).try_into().unwrap_or_default())
}

/// Learns the time from the headers of an answer.
pub(crate) fn learn(headers: &HeaderMap) {
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    date.into_iter().for_each(|date| AHEAD_MILLIS.store(ahead(date, here()), Ordering::Relaxed));
}

/// How far a `Date` (RFC 9110, section 5.6.7) is ahead of `here`.
fn ahead(date: &str, here: i64) -> i64 {
    let difference = httpdate::parse_http_date(date).map_or(0, |date| millis(date).saturating_sub(here));
    if difference.abs() < NOTEWORTHY_MILLIS { 0 } else { difference }
}

/// This machine's clock, in milliseconds since the Unix epoch.
fn here() -> i64 {
    millis(SystemTime::now())
}

fn millis(time: SystemTime) -> i64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_millis().try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_by_more_than_some_seconds_is_corrected() {
        const THERE: i64 = 784_111_777_000;
        const HOUR: i64 = 3_600_000;
        for (date, here, expected) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", THERE - 2 * HOUR, 2 * HOUR),
            ("Sun, 06 Nov 1994 08:49:37 GMT", THERE + HOUR, -HOUR),
            ("Sun, 06 Nov 1994 08:49:37 GMT", THERE + 1_500, 0),
            ("yesterday", THERE, 0),
        ] {
            assert_eq!(ahead(date, here), expected, "{date} at {here}");
        }
    }
}
