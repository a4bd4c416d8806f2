//! Makes untrusted text safe for a terminal. Keeps letters and colours. Removes everything that moves the cursor, sets
//! the title, writes to the clipboard, makes the terminal answer, or changes the order in which letters are shown.

use std::borrow::Cow;
use std::fmt::Write;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle_parse::{Params, Parser, Perform};

use super::frames::last_frame;

const ESCAPE: char = '\u{1b}';

/// Makes one line safe for a terminal. Removes characters that change the direction of text, and control characters
/// except tabs. Keeps SGR sequences (ECMA-48, 8.3.117) if `colours` are kept. Keeps only the
/// last frame of a progress bar, which would overwrite the replica's name too.
pub(crate) fn for_terminal(line: &str, colours: Colours) -> Cow<'_, str> {
    let line = last_frame(line);
    if line.chars().all(is_plain) {
        return Cow::Borrowed(line);
    }
    let mut clean = Clean { text: String::with_capacity(line.len()), colours };
    let mut parser = Parser::<anstyle_parse::Utf8Parser>::new();
    for byte in line.bytes() {
        parser.advance(&mut clean, byte);
    }
    let Clean { mut text, .. } = clean;
    if text.contains(ESCAPE) {
        // A colour must not continue on the next replica's line.
        text.push_str("\u{1b}[0m");
    }
    Cow::Owned(text)
}

/// What happens to the colours that a text already contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    Kept,
    Removed,
}

/// Whether the stream shows colours. This also depends on variables such as `NO_COLOR`.
pub(super) fn colours_of(stream: &impl RawStream) -> Colours {
    if AutoStream::choice(stream) == ColorChoice::Never { Colours::Removed } else { Colours::Kept }
}

/// Whether a terminal shows this character and does nothing else with it.
pub(crate) fn is_plain(letter: char) -> bool {
    // Embeddings, overrides and isolates of the bidirectional algorithm (UAX 9): they can make
    // harmful text look harmless.
    let turns = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter == '\t' || !(letter.is_control() || turns)
}

/// Collects the kept parts of a line. The parser calls a method for each part. Parts without a method here are removed.
struct Clean {
    text: String,
    colours: Colours,
}

impl Perform for Clean {
    fn print(&mut self, letter: char) {
        if is_plain(letter) {
            self.text.push(letter);
        }
    }

    fn execute(&mut self, byte: u8) {
        if byte == b'\t' {
            self.text.push('\t');
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: u8) {
        let is_colour = action == b'm' && intermediates.is_empty() && !ignore;
        if !is_colour || self.colours == Colours::Removed {
            return;
        }
        let spelled = |param: &[u16]| param.iter().map(u16::to_string).collect::<Vec<_>>().join(":");
        let params: Vec<String> = params.iter().map(spelled).collect();
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{ESCAPE}[{}m", params.join(";"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_text_tabs_and_colours_reach_a_terminal() {
        for (line, shown) in [
            ("plain\ttext │ ü", "plain\ttext │ ü"),
            ("\u{1b}[31mred\u{1b}[0m", "\u{1b}[31mred\u{1b}[0m\u{1b}[0m"),
            ("\u{1b}[38;5;12mblue", "\u{1b}[38;5;12mblue\u{1b}[0m"),
            ("\u{1b}[2J\u{1b}[Hgone", "gone"),
            ("\u{1b}[6nanswer", "answer"),
            ("\u{1b}[?1049hscreen", "screen"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\u{1b}]52;c;Zm9v\u{1b}\\text", "text"),
            ("\u{1b}]0;unended", ""),
            ("\u{1b}creset", "reset"),
            ("\u{1b}[31", ""),
            ("\u{1b}[m", "\u{1b}[0m\u{1b}[0m"),
            ("\u{1b}[4:3m\u{1b}[>4;2m", "\u{1b}[4:3m\u{1b}[0m"),
            ("\u{1b}]8;;http://evil\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}P+q544e\u{1b}\\text", "text"),
            ("user\u{202e}gpj.exe \u{2066}a\u{2069}", "usergpj.exe a"),
            ("\u{7f}\u{85}x", "x"),
            ("\u{1b}[\u{1}31mx", "\u{1b}[31mx\u{1b}[0m"),
            ("tail\u{1b}", "tail"),
            ("\u{1b}äx", ""),
            ("ab\u{8}\u{7}\u{0}c", "abc"),
            ("10%\u{8}\u{8}\u{8}\r50%\u{8}\u{8}\u{8}100%\u{8}\u{8}", "100%"),
            ("äö\u{8}\u{8}\u{8}ü", "ü"),
            ("\u{9b}2Jc1", "2Jc1"),
            ("10%\r50%\r100%\r", "100%"),
            ("windows\r", "windows"),
        ] {
            assert_eq!(for_terminal(line, Colours::Kept), shown, "{line:?}");
        }
    }

    #[test]
    fn colour_sequences_are_removed_if_colours_are_off() {
        assert_eq!(for_terminal("\u{1b}[31mred\u{1b}[0m", Colours::Removed), "red");
    }

    /// Random text with many parts of control sequences.
    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            "[\u{1b}\u{9b}\u{9d}\u{90}]?[\\[\\]P^_X]?[0-9;:?>! ]{0,4}[mHJABChlnq\u{7}\u{1b}\\\\]?",
            "[\u{0}-\u{a0}\u{202a}-\u{202e}\u{2066}-\u{2069}äß│😀]{0,6}",
            any::<String>(),
        ];
        vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    /// The text without its SGR sequences. Panics if the text contains a sequence with `ESC [` that is no SGR
    /// sequence.
    fn without_colours(text: &str) -> String {
        let mut parts = text.split("\u{1b}[");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |all, part| {
            let end = part.find('m').unwrap_or_else(|| panic!("a control sequence does not end in m: {text:?}"));
            assert!(
                part[..end].bytes().all(|byte| byte.is_ascii_digit() || b";:".contains(&byte)),
                "not SGR: {text:?}"
            );
            all + &part[end + 1..]
        })
    }

    proptest! {
        #[test]
        fn of_all_control_characters_only_tabs_and_colours_are_kept(text in hostile()) {
            let shown = for_terminal(&text, Colours::Kept);
            let rest = without_colours(&shown);
            prop_assert!(rest.chars().all(is_plain), "{:?}", shown);
            prop_assert_eq!(for_terminal(&shown, Colours::Removed), rest.as_str());
            prop_assert_eq!(for_terminal(&text, Colours::Removed), rest);
        }

        #[test]
        fn plain_text_is_unchanged(text in "[^\\p{Cc}\u{202a}-\u{202e}\u{2066}-\u{2069}]{0,40}", tail in "[a-z│ä😀]{0,8}") {
            prop_assert_eq!(for_terminal(&text, Colours::Kept), text.as_str());
            // The control character makes `for_terminal` use the parser.
            let beside_a_control = format!("\u{0}{text}{tail}");
            prop_assert_eq!(for_terminal(&beside_a_control, Colours::Kept), text + &tail);
        }
    }
}
