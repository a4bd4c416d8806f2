//! Whether and when the agent ends.

use std::time::Instant;

/// What ends the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shutdown {
    /// The agent does not end yet.
    None,
    /// A signal. The agent ends as soon as nothing runs, and at this time at the latest.
    Terminated(Instant),
    /// The end of its parent, or of the job that it has joined. The agent ends as soon as nothing runs, and at this
    /// time at the latest.
    EndNow(Instant),
    /// A request. The agent ends now.
    Now,
}

impl Shutdown {
    /// The shutdown of an agent that must end at once: at `deadline` at the latest.
    pub(super) fn hurried(self, deadline: Instant) -> Self {
        match self {
            Self::None => Self::EndNow(deadline),
            Self::Terminated(earlier) | Self::EndNow(earlier) => Self::EndNow(earlier.min(deadline)),
            Self::Now => Self::Now,
        }
    }

    /// The time by which the agent ends, even if a run is still alive.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Terminated(deadline) | Self::EndNow(deadline) => Some(deadline),
            Self::None | Self::Now => None,
        }
    }

    /// When the agent must have ended, if a signal ends it.
    pub(super) fn signal_deadline(self) -> Option<Instant> {
        if let Self::Terminated(deadline) = self { Some(deadline) } else { None }
    }

    /// Whether the agent ends now. `is_active` says whether a run may still be alive.
    pub(super) fn is_due(self, is_active: bool, now: Instant) -> bool {
        match self {
            Self::None => false,
            Self::Terminated(deadline) | Self::EndNow(deadline) => !is_active || deadline <= now,
            Self::Now => true,
        }
    }
}
