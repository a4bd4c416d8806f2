//! How long a text is once it is written as JSON, and what of it fits: a control character takes six bytes there.

/// Number of bytes that a character takes in a JSON text, as `serde_json` writes it.
pub fn json_bytes(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..' ' => 6,
        other => other.len_utf8(),
    }
}

/// Number of bytes that a text takes in JSON, without its quotes.
pub fn json_length(text: &str) -> usize {
    text.chars().map(json_bytes).sum()
}

/// The longest beginning of `text` that takes at most `room` bytes in JSON.
pub fn beginning(text: &str, room: usize) -> &str {
    let mut left = room;
    let cut = text.char_indices().find(|(_, character)| !takes(&mut left, *character));
    cut.map_or(text, |(cut, _)| &text[..cut])
}

/// The longest end of `text` that takes at most `room` bytes in JSON.
pub fn end(text: &str, room: usize) -> &str {
    let mut left = room;
    let cut = text.char_indices().rev().find(|(_, character)| !takes(&mut left, *character));
    cut.map_or(text, |(cut, character)| &text[cut + character.len_utf8()..])
}

/// Takes a character's bytes out of `left`, if there are as many.
fn takes(left: &mut usize, character: char) -> bool {
    let rest = left.checked_sub(json_bytes(character));
    *left = rest.unwrap_or(0);
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_as_long_as_serde_json_writes_it() {
        let all: String = (0..0x300).filter_map(char::from_u32).collect();
        assert_eq!(serde_json::to_string(&all).expect("a text").len(), json_length(&all) + 2);
    }

    #[test]
    fn what_fits_is_cut_between_characters() {
        assert_eq!((beginning("añ\u{1b}b", 3), beginning("añ\u{1b}b", 8), beginning("añb", 2)), ("añ", "añ", "a"));
        assert_eq!((end("a\u{1b}ñb", 3), end("a\u{1b}ñb", 8), end("añb", 2)), ("ñb", "ñb", "b"));
        assert_eq!(
            (beginning("\u{1b}", 6), end("\u{1b}", 6), beginning("", 0), end("x", 0)),
            ("\u{1b}", "\u{1b}", "", "")
        );
    }
}
