//! Durations: whole seconds with a unit.

use protocol::duration::{BadDuration, WholeSeconds};

#[test]
fn a_duration_is_a_number_of_whole_seconds_with_a_unit() {
    for (text, expected) in [
        ("5s", Ok(WholeSeconds(5))),
        ("1m30s", Ok(WholeSeconds(90))),
        ("1000ms", Ok(WholeSeconds(1))),
        ("4294967295s", Ok(WholeSeconds(u32::MAX))),
        ("5", Err(BadDuration::Shape)),
        ("", Err(BadDuration::Shape)),
        ("-5s", Err(BadDuration::Shape)),
        ("1500ms", Err(BadDuration::Fraction)),
        ("4294967296s", Err(BadDuration::TooLong)),
    ] {
        assert_eq!(text.parse(), expected, "{text:?}");
    }
}
