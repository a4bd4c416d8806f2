//! The length of a text in JSON, and how to cut the text to a limit. A control character takes up to six bytes in JSON.

/// Length of a character in a JSON string, in bytes, as `serde_json` writes it.
pub fn json_bytes(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..' ' => 6,
        other => other.len_utf8(),
    }
}

/// Length of a text in JSON, in bytes, without its quotes.
pub fn json_length(text: &str) -> usize {
    text.chars().map(json_bytes).sum()
}

/// The longest prefix of `text` that takes at most `room` bytes in JSON.
pub fn beginning(text: &str, room: usize) -> &str {
    let mut left = room;
    let cut = text.char_indices().find(|(_, character)| !takes(&mut left, *character));
    cut.map_or(text, |(cut, _)| &text[..cut])
}

/// The text before the first `separator`, and the text after it if there is one.
pub fn parted(text: &str, separator: char) -> (&str, Option<&str>) {
    text.split_once(separator).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// The first sentence of `text`, with its full stop.
pub fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |at| &text[..=at])
}

/// The longest suffix of `text` that takes at most `room` bytes in JSON.
pub fn end(text: &str, room: usize) -> &str {
    let mut left = room;
    let cut = text.char_indices().rev().find(|(_, character)| !takes(&mut left, *character));
    cut.map_or(text, |(cut, character)| &text[cut + character.len_utf8()..])
}

/// Subtracts a character's bytes from `left`. Returns false, and sets `left` to 0, if too few are left.
fn takes(left: &mut usize, character: char) -> bool {
    let rest = left.checked_sub(json_bytes(character));
    *left = rest.unwrap_or(0);
    rest.is_some()
}
