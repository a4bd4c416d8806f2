//! The API server's clock: all masters of a cluster count by it. Each asks once, when it begins, and counts on from there, so
//! that a correction of its machine's clock changes nothing.

use std::time::Instant;

use k8s_openapi::jiff::fmt::rfc2822;
use protocol::ids::UnixMillis;
use tracing::warn;

use crate::store::wall_clock;

/// A difference that is worth a line. A smaller one may be the time that the answer took.
const NOTEWORTHY_MILLIS: u64 = 5_000;

/// What time it is at the API server. Without an answer, this machine's clock counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// A time there, and when it was that time.
    known: Option<(UnixMillis, Instant)>,
}

impl Clock {
    /// From the header `Date` of an answer that came `at` this instant (RFC 9110, section 5.6.7: whole seconds).
    pub(crate) fn of_answer(date: Option<&str>, at: Instant) -> Self {
        let there = date.and_then(|date| u64::try_from(rfc2822::parse(date).ok()?.timestamp().as_millisecond()).ok());
        let Some(there) = there else {
            warn!("the Kubernetes API does not say what time it is: this machine's clock counts");
            return Self::default();
        };
        let difference_ms = there.abs_diff(wall_clock().0);
        if difference_ms > NOTEWORTHY_MILLIS {
            warn!(difference_ms, "the Kubernetes API's clock is another: deadlines follow it");
        }
        Self { known: Some((UnixMillis(there), at)) }
    }

    /// The time there, at this instant.
    pub(crate) fn at(self, now: Instant) -> UnixMillis {
        let Some((there, at)) = self.known else { return wall_clock() };
        let elapsed = now.saturating_duration_since(at).as_millis();
        UnixMillis(there.0.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_is_the_api_servers_whatever_this_machine_says() {
        let there = 784_111_777_000;
        let at = Instant::now();
        let clock = Clock::of_answer(Some("Sun, 06 Nov 1994 08:49:37 GMT"), at);
        assert_eq!(clock.at(at), UnixMillis(there));
        assert_eq!(clock.at(at + Duration::from_millis(500)), UnixMillis(there + 500));
        assert_eq!(Clock::of_answer(Some("yesterday"), at), Clock::default());
        assert!(Clock::default().at(at).0 > there);
    }
}
