//! Tests of `protocol::text`.

use protocol::text::{beginning, end, json_length};

#[test]
fn a_text_has_the_length_that_serde_json_writes() {
    let all: String = (0..0x300).filter_map(char::from_u32).collect();
    assert_eq!(serde_json::to_string(&all).expect("could not write the text as JSON").len(), json_length(&all) + 2);
}

#[test]
fn a_text_is_cut_between_characters() {
    assert_eq!((beginning("añ\u{1b}b", 3), beginning("añ\u{1b}b", 8), beginning("añb", 2)), ("añ", "añ", "a"));
    assert_eq!((end("a\u{1b}ñb", 3), end("a\u{1b}ñb", 8), end("añb", 2)), ("ñb", "ñb", "b"));
    assert_eq!((beginning("\u{1b}", 6), end("\u{1b}", 6), beginning("", 0), end("x", 0)), ("\u{1b}", "\u{1b}", "", ""));
}
