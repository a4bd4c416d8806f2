//! This machine's clock.

use protocol::lease::ClockMillis;
use rustix::time::{ClockId, clock_gettime};

/// The time since this machine was started, with the time in which it was suspended.
pub(crate) fn clock() -> ClockMillis {
    let now = clock_gettime(ClockId::Boottime);
    let millis = now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000);
    ClockMillis(u64::try_from(millis).unwrap_or(0))
}
