//! This machine's clock, and when to look at it, so that a run ends at its [`Fence`].

use std::time::Duration;

use protocol::lease::{ClockMillis, Fence};
use rustix::time::{ClockId, clock_gettime};

/// Longest time between two looks at the clock. While the machine is suspended, the runtime's timers stop, but the
/// master's clock does not. So a longer timer would end too late.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// This machine's clock.
pub(crate) fn clock() -> ClockMillis {
    let now = clock_gettime(ClockId::Boottime);
    let millis = now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000);
    ClockMillis(u64::try_from(millis).unwrap_or(0))
}

/// How long to wait before the next look at the clock; `None` if the run may live without limit.
pub(super) fn next_look(fence: &Fence) -> Option<Duration> {
    let left = fence.until()?.0.saturating_sub(clock().0);
    Some(Duration::from_millis(left).min(LOOK_INTERVAL))
}
