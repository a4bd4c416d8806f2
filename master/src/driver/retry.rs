//! How the driver repeats a call that an agent did not answer.

use std::time::Duration;

use backon::ExponentialBuilder;

use crate::agents::client::AgentError;

/// Maximum number of retries of a call. All pauses together last two to five seconds.
const ATTEMPTS: usize = 6;

/// The pauses between the attempts.
pub(super) fn patience() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(10))
        .with_max_delay(Duration::from_secs(1))
        .with_factor(3.0)
        .with_max_times(ATTEMPTS)
        .with_jitter()
}

/// Whether the same call may succeed later.
pub(super) fn is_unreachable(error: &AgentError) -> bool {
    matches!(error, AgentError::Unreachable { .. })
}
