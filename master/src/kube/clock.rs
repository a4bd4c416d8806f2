//! The API server's clock: all masters of a cluster count by it. Each asks once, when it begins, and goes on by its own.

use k8s_openapi::jiff::fmt::rfc2822;
use protocol::ids::UnixMillis;
use tracing::warn;

/// A difference that is worth a line: what is less may be the answer's way.
const NOTEWORTHY_MILLIS: i64 = 5_000;

/// How far the API server's clock is ahead of this machine's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    ahead_millis: i64,
}

impl Clock {
    /// From the `Date` of an answer that came when it was `here` on this machine. Without one, this machine's clock counts.
    pub(crate) fn of_answer(date: Option<&str>, here: UnixMillis) -> Self {
        let Some(clock) = date.and_then(|date| Self::of(date, here)) else {
            warn!("the Kubernetes API does not say what time it is: this machine's clock counts");
            return Self::default();
        };
        if clock.ahead_millis.abs() > NOTEWORTHY_MILLIS {
            warn!(ahead_ms = clock.ahead_millis, "the Kubernetes API's clock is another: deadlines follow it");
        }
        clock
    }

    /// From a header `Date` (RFC 9110, section 5.6.7), which has whole seconds.
    fn of(date: &str, here: UnixMillis) -> Option<Self> {
        let there = rfc2822::parse(date).ok()?.timestamp().as_millisecond();
        Some(Self { ahead_millis: there.checked_sub_unsigned(here.0)? })
    }

    /// The time there, when it is `here` on this machine.
    pub(crate) fn at(self, here: UnixMillis) -> UnixMillis {
        UnixMillis(here.0.saturating_add_signed(self.ahead_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_the_api_servers_whatever_this_machine_says() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let there = 784_111_777_000;
        for here in [there - 3_600_000, there, there + 42] {
            let clock = Clock::of(date, UnixMillis(here)).unwrap();
            assert_eq!(clock.at(UnixMillis(here)), UnixMillis(there));
            assert_eq!(clock.at(UnixMillis(here + 500)), UnixMillis(there + 500));
        }
        assert_eq!(Clock::of("yesterday", UnixMillis(0)), None);
    }
}
