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
    let shown = line.trim_end_matches(BACK).rsplit('\r').next().unwrap_or_default();
    let mut column = 0_usize;
    let begins = shown.char_indices().filter_map(|(at, letter)| {
        column = if letter == '\u{8}' { column.saturating_sub(1) } else { column + 1 };
        (column == 0).then_some(at + letter.len_utf8())
    });
    &shown[begins.last().unwrap_or(0)..]
}

/// The offset of each replica's unfinished line, and when the line began or when its newest frame was printed.
#[derive(Debug, Default)]
pub(super) struct Frames(BTreeMap<ReplicaId, (u64, Instant)>);

impl Frames {
    /// Whether to print the newest frame of an unfinished line now. Only progress bars have frames: the begin of another
    /// line would be printed twice.
    pub(super) fn is_due(&mut self, line: &LogLine, now: Instant) -> bool {
        let since = self.0.get(&line.replica).filter(|(offset, _)| *offset == line.offset).map_or(now, |(_, at)| *at);
        let is_due = line.line.contains(BACK) && now.duration_since(since) >= INTERVAL;
        self.0.insert(line.replica, (line.offset, if is_due { now } else { since }));
        is_due
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
        let mut is_due = |offset, text: &str, second| {
            let line = LogLine { replica, time: None, offset, line: text.to_owned(), unfinished: true };
            frames.is_due(&line, begin + Duration::from_secs(second))
        };
        let due = [("1%", 0), ("1%\r2%", 9), ("1%\r2%", 12), ("1%\r3%", 21), ("1%\r4%", 22)];
        assert_eq!(due.map(|(text, second)| is_due(0, text, second)), [false, false, true, false, true]);
        assert!(!is_due(0, "waiting", 90), "the line has no frames");
        assert!(!is_due(15, "\r1%", 99), "the line has just begun");
    }
}
