//! This machine's clock.

use protocol::ids::UnixMillis;

/// The time by this machine's clock.
pub fn wall_clock() -> UnixMillis {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}
