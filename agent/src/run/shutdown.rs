//! Whether and when the agent ends.

use std::time::Instant;

/// What ends the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shutdown {
    /// Nothing yet.
    None,
    /// A signal: as soon as nothing runs, and at this time at the latest.
    Terminated(Instant),
    /// The death of its parent: likewise.
    ParentGone(Instant),
    /// A request: now.
    Now,
}

impl Shutdown {
    /// The same after the parent's death: at `deadline` at the latest, with nobody left to wait for it.
    pub(super) fn after_parent(self, deadline: Instant) -> Self {
        match self {
            Self::None => Self::ParentGone(deadline),
            Self::Terminated(earlier) | Self::ParentGone(earlier) => Self::ParentGone(earlier.min(deadline)),
            Self::Now => Self::Now,
        }
    }

    /// The time by which the agent ends, whatever still runs.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Terminated(deadline) | Self::ParentGone(deadline) => Some(deadline),
            Self::None | Self::Now => None,
        }
    }

    /// When the agent gets SIGKILL, if a signal ends it.
    pub(super) fn killed_at(self) -> Option<Instant> {
        if let Self::Terminated(deadline) = self { Some(deadline) } else { None }
    }

    /// Whether the agent ends now. `is_active` says whether a run may still be alive.
    pub(super) fn is_due(self, is_active: bool, now: Instant) -> bool {
        match self {
            Self::None => false,
            Self::Terminated(deadline) | Self::ParentGone(deadline) => !is_active || deadline <= now,
            Self::Now => true,
        }
    }
}
