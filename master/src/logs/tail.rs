//! The last lines of a replica's output, cut so that they fit into the record of its job.

use protocol::text;

/// Maximum bytes of a replica's last lines as JSON, enough for twenty lines of eight hundred characters. Only the
/// newest failed start keeps its lines. A ConfigMap of 1 MiB has room for these lines: the spec may use about half of
/// the ConfigMap, and the result a quarter.
pub(super) const LAST_LINES_BYTES: usize = 16 * 1024;

/// The bytes of JSON around a line: two quotes, and a comma after the line.
const FRAME_BYTES: usize = 3;

/// Replaces the beginning of a single line that is too long.
const CUT: char = '…';

/// Returns the last lines of a text, as many whole lines as fit. If even the last line does not fit, returns its end.
/// A text of at least [`LAST_LINES_BYTES`] may begin inside a line: that line would not fit anyway.
pub(super) fn that_fits(output: &str) -> Vec<String> {
    let mut room = LAST_LINES_BYTES;
    let mut kept = vec![];
    for line in output.lines().rev() {
        let length = FRAME_BYTES + text::json_length(line);
        if length > room && kept.is_empty() {
            kept.push(end_of(line));
        }
        let Some(left) = room.checked_sub(length) else { break };
        room = left;
        kept.push(line.to_owned());
    }
    kept.reverse();
    kept
}

fn end_of(line: &str) -> String {
    format!("{CUT}{}", text::end(line, LAST_LINES_BYTES - FRAME_BYTES - CUT.len_utf8()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(lines: &[String]) -> usize {
        serde_json::to_string(lines).unwrap().len()
    }

    #[test]
    fn lines_that_fit_are_all_kept() {
        let lines = vec!["2026-11-21 12:00:00.000000: W tensorflow/core/".repeat(17); 20];
        assert_eq!(that_fits(&format!("{}\n", lines.join("\n"))), lines);
        assert_eq!(that_fits("one\r\n\nthree"), ["one", "", "three"]);
        assert!(that_fits("").is_empty());
    }

    #[test]
    fn only_the_last_whole_lines_that_fit_are_kept() {
        let lines: Vec<String> = (0..20).map(|line| format!("{line:02}{}", "x".repeat(998))).collect();
        assert_eq!(that_fits(&lines.join("\n")), lines[4..]);
    }

    #[test]
    fn only_the_end_of_a_last_line_that_is_too_long_is_kept() {
        for character in ["x", "\u{8}", "\"", "\u{1b}", "ü", "\u{1f980}"] {
            let kept = that_fits(&format!("before\n{}end\n", character.repeat(LAST_LINES_BYTES)));
            assert_eq!(kept.len(), 1);
            assert!(kept[0].starts_with('…') && kept[0].ends_with("end"), "{character:?} was cut at another place");
            let left = LAST_LINES_BYTES + 1 - written(&kept);
            assert!(left < 6, "{left} more bytes of {character:?} would fit");
        }
    }

    #[test]
    fn the_computed_length_is_the_length_of_the_json() {
        let all: String = (0..0x300).filter_map(char::from_u32).filter(|one| *one != '\n').collect();
        let length = text::json_length(&all) + FRAME_BYTES;
        // An array of one line has two brackets and no comma.
        assert_eq!(written(&[all]), length + 1);
    }
}
