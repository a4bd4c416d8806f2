//! When the bytes of a log were printed (pure: time is an argument).

use std::time::Duration;

use protocol::lease::ClockMillis;

/// Minimum time between two new marks.
const INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of marks. They take 16 KiB.
const MARKS_MAX: usize = 1024;

/// The bytes from `offset` to the next mark were printed at `at` or shortly after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    offset: u64,
    at: ClockMillis,
}

/// The marks of one log, oldest first. If there are too many, the marks that are closest in time are removed. So after
/// a long time without a master, the known times are evenly spread over this time.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<Mark>);

/// What is known about the time of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Printed {
    /// How long ago the byte was printed.
    pub(super) age: Duration,
    /// The bytes before this offset were printed at the same time.
    pub(super) until: u64,
}

impl Marks {
    /// Notes that the bytes from `offset` on are printed now. The log keeps no bytes before `start`.
    pub(super) fn note(&mut self, offset: u64, now: ClockMillis, start: u64) {
        if self.0.last().is_some_and(|last| now < last.at.after(INTERVAL)) {
            return;
        }
        if self.0.len() == MARKS_MAX {
            self.thin(start);
        }
        self.0.push(Mark { offset, at: now });
    }

    /// When the byte at `offset` was printed.
    pub(super) fn of(&self, offset: u64, now: ClockMillis) -> Printed {
        let next = self.0.partition_point(|mark| mark.offset <= offset);
        let at = next.checked_sub(1).map_or(now, |index| self.0[index].at);
        let until = self.0.get(next).map_or(u64::MAX, |mark| mark.offset);
        Printed { age: Duration::from_millis(now.0.saturating_sub(at.0)), until }
    }

    /// Removes the marks of dropped bytes, and then the marks that are closest in time, until half of the room is free.
    fn thin(&mut self, start: u64) {
        // The oldest kept byte needs the newest mark at or before it.
        let dropped = self.0.partition_point(|mark| mark.offset <= start).saturating_sub(1);
        self.0.drain(..dropped);
        let mut interval = INTERVAL;
        while self.0.len() > MARKS_MAX / 2 {
            interval *= 2;
            self.0.dedup_by(|later, earlier| later.at < earlier.at.after(interval));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks of one byte each at these times.
    fn marks(times: impl IntoIterator<Item = u64>) -> Marks {
        let mut marks = Marks::default();
        for (offset, at) in (0..).zip(times) {
            marks.note(offset, ClockMillis(at), 0);
        }
        marks
    }

    fn age_of(marks: &Marks, offset: u64, now: u64) -> u64 {
        marks.of(offset, ClockMillis(now)).age.as_millis() as u64
    }

    #[test]
    fn bytes_have_the_time_at_which_they_were_printed() {
        let marks = marks([100, 105, 110, 500]);
        assert_eq!([0, 1, 2, 3, 9].map(|offset| age_of(&marks, offset, 1000)), [900, 900, 890, 500, 500]);
        assert_eq!([0, 2, 3].map(|offset| marks.of(offset, ClockMillis(1000)).until), [2, 3, u64::MAX]);
    }

    #[test]
    fn an_age_is_never_negative() {
        assert_eq!(age_of(&marks([100]), 0, 50), 0);
        assert_eq!(age_of(&Marks::default(), 7, 50), 0);
    }

    #[test]
    fn after_a_long_time_all_ages_are_known_to_a_small_part_of_this_time() {
        const DAY: u64 = 24 * 60 * 60 * 1000;
        let times = || (0..DAY).step_by(1000).chain((DAY..DAY + 50_000).step_by(10));
        let marks = marks(times());
        assert!(marks.0.len() <= MARKS_MAX, "{} marks", marks.0.len());
        let error = |(offset, at): (u64, u64)| age_of(&marks, offset, DAY * 2) - (DAY * 2 - at);
        let worst = (0..).zip(times()).map(error).max();
        assert!(worst.is_some_and(|worst| worst < DAY / 200), "{worst:?} ms");
    }

    #[test]
    fn marks_of_dropped_bytes_make_room_first() {
        let mut marks = marks((0..MARKS_MAX as u64).map(|index| index * 10));
        let end = MARKS_MAX as u64;
        marks.note(end, ClockMillis(end * 10), end - 100);
        assert_eq!(marks.0.len(), 101);
        assert_eq!(age_of(&marks, end - 100, end * 10), 1000);
    }
}
