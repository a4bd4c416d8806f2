//! Lines of output for the page: safe text, and colours as names of classes.

use protocol::ids::{ReplicaId, Role};
use protocol::output::LogLine;
use serde::Serialize;

use crate::output::{Colours, for_terminal};

/// Maximum characters shown of a line.
const LINE_MAX: usize = 4000;
/// Number of the classes for the names of replicas.
const NAME_COLOURS: usize = 8;

/// A line of a replica's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) replica: ReplicaId,
    /// Where the line ends in the replica's output.
    #[serde(skip)]
    pub(super) offset: u64,
    /// Number of the colour of the replica's name.
    pub(super) colour: usize,
    pub(super) spans: Vec<Span>,
}

/// A piece of a line in one colour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Span {
    /// Names of classes, such as `f1 b` for bold text in red. Empty for plain text.
    pub(super) class: String,
    pub(super) text: String,
}

impl Line {
    /// The line as the page shows it.
    pub(super) fn new(line: &LogLine) -> Self {
        let LogLine { replica, line, offset, .. } = line;
        let role = Role::ALL.iter().position(|role| *role == replica.role).unwrap_or(0);
        let colour = (role + replica.index as usize) % NAME_COLOURS;
        Self { replica: *replica, offset: *offset, colour, spans: spans(line) }
    }

    /// Whether the line contains this text in any letter case.
    pub(super) fn contains(&self, lower_case: &str) -> bool {
        let text: String = self.spans.iter().map(|span| span.text.as_str()).collect();
        format!("{} {text}", self.replica).to_lowercase().contains(lower_case)
    }
}

/// The text in pieces of one colour each.
fn spans(line: &str) -> Vec<Span> {
    let safe = for_terminal(line, Colours::Kept);
    let mut shown = Vec::new();
    let (mut style, mut room) = (Style::default(), LINE_MAX);
    for (index, part) in safe.split("\u{1b}[").enumerate() {
        // `for_terminal` keeps only sequences that end in `m`.
        let text = match part.split_once('m') {
            Some((parameters, text)) if index > 0 => {
                style = style.after(parameters);
                text
            }
            Some(_) | None => part,
        };
        let (kept, is_cut) = match text.char_indices().nth(room) {
            Some((end, _)) => (&text[..end], true),
            None => (text, false),
        };
        room -= kept.chars().count();
        if !kept.is_empty() {
            shown.push(Span { class: style.class(), text: kept.to_owned() });
        }
        if is_cut {
            shown.push(Span { class: String::new(), text: " …".to_owned() });
            break;
        }
    }
    shown
}

/// The part of a terminal's style that the page shows.
#[derive(Debug, Clone, Copy, Default)]
struct Style {
    /// Number of the colour, 0 to 15.
    foreground: Option<u8>,
    bold: bool,
}

impl Style {
    /// The style after an SGR sequence with these parameters (ECMA-48, 8.3.117).
    fn after(self, parameters: &str) -> Self {
        let mut style = self;
        let mut codes = parameters.split(';').map(|code| code.parse::<u8>().unwrap_or_default());
        while let Some(code) = codes.next() {
            match code {
                0 => style = Self::default(),
                1 => style.bold = true,
                22 => style.bold = false,
                30..=37 => style.foreground = Some(code - 30),
                90..=97 => style.foreground = Some(code - 90 + 8),
                39 => style.foreground = None,
                // A colour of a palette, or of three numbers. The numbers are not codes.
                38 | 48 => {
                    let numbers = if codes.next() == Some(5) { 1 } else { 3 };
                    codes.by_ref().take(numbers).for_each(drop);
                }
                _ => {}
            }
        }
        style
    }

    fn class(self) -> String {
        let colour = self.foreground.map(|number| format!("f{number}"));
        let bold = self.bold.then(|| "b".to_owned());
        colour.into_iter().chain(bold).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        let spans = spans(line).into_iter().map(|Span { class, text }| format!("{class}[{text}]"));
        spans.collect()
    }

    #[test]
    fn colours_become_classes_and_all_other_sequences_are_removed() {
        for (line, expected) in [
            ("plain <b>", "[plain <b>]"),
            ("\u{1b}[31mred\u{1b}[0m rest", "f1[red][ rest]"),
            ("\u{1b}[1;94mblue\u{1b}[22mthin\u{1b}[39mplain", "f12 b[blue]f12[thin][plain]"),
            ("\u{1b}[38;5;1mpalette\u{1b}[38;2;1;31;1mrgb", "[palette][rgb]"),
            ("\u{1b}[2Jx\u{1b}]0;title\u{7}y\u{202e}z\u{0}", "[xyz]"),
            ("\u{1b}[mx[31my", "[x[31my]"),
            ("", ""),
        ] {
            assert_eq!(shown(line), expected, "{line:?}");
        }
    }

    #[test]
    fn a_long_line_is_cut_between_two_characters() {
        let line = format!("{}\u{1b}[31m{}", "ü".repeat(3000), "ä".repeat(3000));
        let cut = spans(&line);
        let counts: Vec<usize> = cut.iter().map(|span| span.text.chars().count()).collect();
        assert_eq!(counts, [3000, 1000, 2]);
    }

    #[test]
    fn a_search_looks_at_the_name_and_the_whole_text() {
        let line = LogLine {
            replica: "worker-1".parse().unwrap(),
            time: None,
            offset: 1,
            line: "Epoch \u{1b}[31m1\u{1b}[0m done".to_owned(),
            unfinished: false,
        };
        let line = Line::new(&line);
        assert!(line.contains("epoch 1 done") && line.contains("worker-1 e") && !line.contains("31m"));
    }
}
