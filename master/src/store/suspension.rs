//! The part of a record about the suspensions of the job.

use protocol::ids::{Generation, UnixMillis};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The suspensions of a job.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// Since when the job is suspended. `None` while the job is not suspended.
    pub since: Option<UnixMillis>,
    /// When the job was last resumed.
    pub resumed: Option<UnixMillis>,
    /// The total time of all earlier suspensions, in milliseconds.
    #[serde(default)]
    pub earlier_millis: u64,
    /// The number of starts up to the last suspension, minus the number of restarts that were on record then.
    /// [`super::JobRecord::starts`] adds the restarts.
    #[serde(default)]
    pub starts: u32,
    /// The start that the last suspension ended. This start and all earlier starts are over.
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
