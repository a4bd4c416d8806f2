//! Times as Kubernetes writes them.

use k8s_openapi::jiff::Timestamp;
use protocol::ids::UnixMillis;

/// Formats a time as Kubernetes does, in whole seconds.
pub(crate) fn timestamp(time: UnixMillis) -> String {
    let seconds = i64::try_from(time.0 / 1000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

/// Parses a time in Kubernetes' format.
pub(crate) fn time_of(timestamp: &str) -> Option<UnixMillis> {
    let time: Timestamp = timestamp.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(UnixMillis)
}
