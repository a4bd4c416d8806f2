//! The API server's clock, which all masters of a cluster use. Each master asks for the time once, at its start, and
//! then adds the elapsed time. So corrections of the machine's own clock have no effect.

use std::time::Instant;

use k8s_openapi::jiff::fmt::rfc2822;
use protocol::ids::UnixMillis;
use tracing::warn;

use crate::host::clock::wall_clock;

/// Smaller differences between the clocks are not logged, because the delay of the answer may cause such differences.
const NOTEWORTHY_MILLIS: u64 = 5_000;

/// The time at the API server. Without an answer, this machine's clock is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// A time of the API server, and the instant at which this machine received it.
    known: Option<(UnixMillis, Instant)>,
}

impl Clock {
    /// The clock from the `Date` header of an answer that arrived at `at` (RFC 9110, section 5.6.7: whole seconds).
    pub(crate) fn of_answer(date: Option<&str>, at: Instant) -> Self {
        let there = date.and_then(|date| u64::try_from(rfc2822::parse(date).ok()?.timestamp().as_millisecond()).ok());
        let Some(there) = there else {
            warn!("the Kubernetes API sent no date: using this machine's clock");
            return Self::default();
        };
        let difference_ms = there.abs_diff(wall_clock().0);
        if difference_ms > NOTEWORTHY_MILLIS {
            warn!(difference_ms, "the Kubernetes API's clock differs from this machine's; deadlines use the API's");
        }
        Self { known: Some((UnixMillis(there), at)) }
    }

    /// The API server's time at this instant.
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
    fn the_time_is_the_api_servers_unless_the_api_sends_no_valid_date() {
        let there = 784_111_777_000;
        let at = Instant::now();
        let clock = Clock::of_answer(Some("Sun, 06 Nov 1994 08:49:37 GMT"), at);
        assert_eq!(clock.at(at), UnixMillis(there));
        assert_eq!(clock.at(at + Duration::from_millis(500)), UnixMillis(there + 500));
        assert_eq!(Clock::of_answer(Some("yesterday"), at), Clock::default());
        assert!(Clock::default().at(at).0 > there);
    }
}
