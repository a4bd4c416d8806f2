//! The part of a record about the suspensions of the job.

use std::time::Duration;

use protocol::ids::{Generation, UnixMillis};
use serde::{Deserialize, Serialize};

use super::JobRecord;

/// The suspensions of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// Since when the job is suspended. `None` while the job is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMillis>,
    /// When the job was last resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<UnixMillis>,
    /// The total time of all earlier suspensions, in milliseconds.
    #[serde(default)]
    pub earlier_millis: u64,
    /// The number of starts up to the last suspension, minus the number of restarts in [`JobRecord::restarts`].
    #[serde(default)]
    pub starts: u32,
    /// The start that the last suspension ended. This start and all earlier starts are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Generation>,
}

impl Suspension {
    /// Whether the job was never suspended.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Suspends or resumes the job.
    pub fn set(&mut self, is_suspended: bool, now: UnixMillis) {
        match (self.since, is_suspended) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => {
                self.since = None;
                self.resumed = Some(now);
                self.earlier_millis += now.0.saturating_sub(since.0);
            }
            (None, false) | (Some(_), true) => {}
        }
    }
}

impl JobRecord {
    /// The time from the job's acceptance to `now`, without the time for which the job was suspended.
    pub fn active_time(&self, now: UnixMillis) -> Duration {
        let now = self.suspension.since.map_or(now, |since| since.min(now));
        Duration::from_millis(now.0.saturating_sub(self.accepted_at.0).saturating_sub(self.suspension.earlier_millis))
    }

    /// The number of starts that are over, according to the record.
    pub fn starts(&self) -> u32 {
        self.restarts.total() + self.suspension.starts + u32::from(self.halted.is_some())
    }

    /// The newest start that is over, according to the record.
    pub fn newest_ended(&self) -> Option<Generation> {
        let halted = self.halted.as_ref().and_then(|halted| halted.failed.generation);
        self.restarts.newest_failed().max(self.suspension.ended).max(halted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_suspensions_are_added_up_and_a_repeated_suspend_or_resume_changes_nothing() {
        let mut suspension = Suspension::default();
        for (is_suspended, now) in
            [(false, 5), (true, 10), (true, 20), (false, 25), (false, 30), (true, 40), (false, 41)]
        {
            suspension.set(is_suspended, UnixMillis(now));
        }
        let expected = Suspension { resumed: Some(UnixMillis(41)), earlier_millis: 16, ..Suspension::default() };
        assert_eq!(suspension, expected);
    }
}
