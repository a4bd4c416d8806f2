//! What of a stranger's text may reach a terminal: its letters and colours, and nothing that moves the cursor, sets the
//! title or asks the terminal to answer.

use std::borrow::Cow;

const ESCAPE: char = '\u{1b}';
/// The longest colour sequence that is let through, in bytes.
const SGR_MAX: usize = 64;

/// One line for a terminal: control characters are left out but for tabs and, where `colours` are wanted, complete SGR
/// sequences (ECMA-48, 8.3.117). Of text that was overwritten by a carriage return, as progress bars do, the last is kept.
pub(crate) fn for_terminal(line: &str, colours: Colours) -> Cow<'_, str> {
    let line = after_last_return(line);
    if !line.chars().any(|letter| letter.is_control() && letter != '\t') {
        return Cow::Borrowed(line);
    }
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(letter) = rest.chars().next() {
        let (kept, length) = match letter {
            ESCAPE => escape(rest, colours),
            '\t' => ("\t", 1),
            letter if letter.is_control() => ("", letter.len_utf8()),
            letter => (&rest[..letter.len_utf8()], letter.len_utf8()),
        };
        clean.push_str(kept);
        rest = &rest[length..];
    }
    if clean.contains(ESCAPE) {
        // A colour that is not ended must not reach the next replica's line.
        clean.push_str("\u{1b}[0m");
    }
    Cow::Owned(clean)
}

/// Whether a program's own colours are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    /// They are.
    Kept,
    /// They are not.
    Removed,
}

fn after_last_return(line: &str) -> &str {
    let shown = line.trim_end_matches('\r');
    shown.rsplit('\r').next().unwrap_or(shown)
}

/// What to keep of the escape sequence at the beginning of `text`, and how long it is.
fn escape(text: &str, colours: Colours) -> (&str, usize) {
    let bytes = text.as_bytes();
    match bytes.get(1) {
        Some(b'[') => {
            let Some(end) = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)).map(|at| at + 2) else {
                return ("", text.len());
            };
            let parameters = &bytes[2..end];
            if !parameters.iter().all(|byte| (0x20..=0x3f).contains(byte)) {
                return ("", 2);
            }
            let numbers = parameters.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b';' | b':'));
            let is_colour = bytes[end] == b'm' && numbers && end < SGR_MAX && colours == Colours::Kept;
            (if is_colour { &text[..=end] } else { "" }, end + 1)
        }
        // Strings for the terminal (title, clipboard, links) end with BEL or ESC \; their text is not output.
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            let bell = text.find('\u{7}').map(|at| at + 1);
            let terminator = text.find("\u{1b}\\").map(|at| at + 2);
            let end = bell.into_iter().chain(terminator).min().unwrap_or(text.len());
            ("", end)
        }
        // ESC and one letter.
        Some(0x20..=0x7e) => ("", 2),
        Some(_) | None => ("", 1),
    }
}

#[cfg(test)]
mod tests {
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
            ("\u{1b}[\u{1}31mx", "31mx"),
            ("tail\u{1b}", "tail"),
            ("\u{1b}äx", "äx"),
            ("a\u{8}\u{7}\u{0}b", "ab"),
            ("\u{9b}2Jc1", "2Jc1"),
            ("10%\r50%\r100%\r", "100%"),
            ("windows\r", "windows"),
        ] {
            assert_eq!(for_terminal(line, Colours::Kept), shown, "{line:?}");
        }
    }

    #[test]
    fn without_colours_their_sequences_go_as_well() {
        assert_eq!(for_terminal("\u{1b}[31mred\u{1b}[0m", Colours::Removed), "red");
    }
}
