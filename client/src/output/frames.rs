//! The frames of a progress bar: texts that a script writes over each other in one line.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::ids::ReplicaId;
use protocol::output::LogLine;

/// Minimum time between two frames of an unfinished line in a pipe or a file.
const INTERVAL: Duration = Duration::from_secs(10);
/// The characters with which progress bars move the cursor back.
const BACK: [char; 2] = ['\r', '\u{8}'];

/// The text that is written after the cursor was at the begin of the line for the last time.
pub(super) fn last_frame(line: &str) -> &str {
    let shown = line.trim_end_matches(BACK);
    let (mut begin, mut column) = (0, 0_usize);
    for (at, letter) in shown.char_indices() {
        column = match letter {
            '\r' => 0,
            '\u{8}' => column.saturating_sub(1),
            _ => column + 1,
        };
        if column == 0 {
            begin = at + letter.len_utf8();
        }
    }
    &shown[begin..]
}

/// When the unfinished line of each replica began, or when its newest frame was printed.
#[derive(Debug, Default)]
pub(super) struct Frames(BTreeMap<ReplicaId, Instant>);

impl Frames {
    /// Whether to print the newest frame of an unfinished line now. Only progress bars have frames: the begin of another
    /// line would be printed twice.
    pub(super) fn is_due(&mut self, LogLine { replica, line, .. }: &LogLine, now: Instant) -> bool {
        let since = self.0.entry(*replica).or_insert(now);
        let is_due = line.contains(BACK) && now.duration_since(*since) >= INTERVAL;
        if is_due {
            *since = now;
        }
        is_due
    }

    /// The line of the replica is complete.
    pub(super) fn end(&mut self, replica: ReplicaId) {
        self.0.remove(&replica);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_line_that_overwrites_itself_only_the_last_frame_is_shown() {
        for (line, frame) in [
            ("10%\r50%\r100%", "100%"),
            ("windows\r", "windows"),
            ("10%\u{8}\u{8}\u{8}\r50%\u{8}\u{8}\u{8}100%\u{8}\u{8}", "100%"),
            ("äö\u{8}\u{8}\u{8}ü", "ü"),
            ("seconds: 9\u{8}8", "seconds: 9\u{8}8"),
            ("\r\r", ""),
        ] {
            assert_eq!(last_frame(line), frame, "{line:?}");
        }
    }

    #[test]
    fn a_frame_of_a_progress_bar_is_due_every_10_s_until_its_line_ends() {
        let (mut frames, begin) = (Frames::default(), Instant::now());
        let replica = "worker-0".parse().unwrap();
        let line = |text: &str| LogLine { replica, time: None, offset: 0, line: text.to_owned(), unfinished: true };
        let mut is_due = |text: &str, second| frames.is_due(&line(text), begin + Duration::from_secs(second));
        let due = [("1%", 0), ("1%\r2%", 9), ("1%\r2%", 12), ("1%\r3%", 21), ("1%\r4%", 22)];
        assert_eq!(due.map(|(text, second)| is_due(text, second)), [false, false, true, false, true]);
        assert!(!is_due("waiting", 90), "the line has no frames");
        frames.end(replica);
        assert!(!frames.is_due(&line("\r1%"), begin + Duration::from_secs(99)), "the line has just begun");
    }
}
