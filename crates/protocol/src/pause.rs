//! Pauses between attempts, each twice as long as the one before.

use std::time::Duration;

/// The pause after `earlier` pauses: the first pause, doubled for each earlier pause, but at most `longest`.
pub fn doubled(first: Duration, earlier: u32, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(earlier)).min(longest)
}
