//! When to look at this machine's clock, so that a run ends at its [`Fence`].

use std::time::Duration;

use protocol::lease::Fence;

use crate::process::clock::clock;

/// Longest time between two looks at the clock. While the machine is suspended, the runtime's timers stop, but the
/// master's clock does not. So a longer timer would end too late.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// How long to wait before the next look at the clock; `None` if the run may live without limit.
pub(super) fn next_look(fence: &Fence) -> Option<Duration> {
    let left = fence.until()?.0.saturating_sub(clock().0);
    Some(Duration::from_millis(left).min(LOOK_INTERVAL))
}
