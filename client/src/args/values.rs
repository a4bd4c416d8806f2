//! Numbers and times as they are typed behind flags, and the sentence about one that is wrong.

use std::num::{IntErrorKind, ParseIntError};
use std::time::Duration;

use protocol::tf_config::MEMBERS_MAX;

/// Replicas of one role. Which numbers go together is checked where the whole job is known.
pub(super) fn count(text: &str) -> Result<u32, String> {
    whole_number(text, "replicas", MEMBERS_MAX)
}

pub(super) fn lines(text: &str) -> Result<u32, String> {
    whole_number(text, "lines", u32::MAX)
}

pub(super) fn restarts(text: &str) -> Result<u32, String> {
    whole_number(text, "restarts", u32::MAX)
}

pub(super) fn gpus(text: &str) -> Result<u32, String> {
    whole_number(text, "GPUs", u32::MAX)
}

/// `greatest` is told to who wants more than a number can be.
fn whole_number(text: &str, of: &str, greatest: u32) -> Result<u32, String> {
    text.parse().map_err(|error: ParseIntError| {
        let wrong = if *error.kind() == IntErrorKind::PosOverflow {
            format!("too large a number of {of}: give {greatest} at most")
        } else {
            format!("not a number of {of}: give a whole number")
        };
        format!("\"{}\" is {wrong}", shown(text))
    })
}

pub(super) fn exit_code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| format!("\"{}\" is no exit code: give numbers from 0 to 255, as 2,3", shown(text)))
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = |_| format!("\"{}\" is no time: use a number with a unit, for example 90s, 10m or 2h", shown(text));
    humantime::parse_duration(text).map_err(wrong)
}

/// A time in whole seconds.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    let time = duration(text)?;
    if time.subsec_nanos() != 0 {
        return Err(format!("\"{}\" is not a whole number of seconds: give 1s, 90s or 10m, for example", shown(text)));
    }
    u32::try_from(time.as_secs()).map_err(|_| format!("\"{}\" is too long: give {}s at most", shown(text), u32::MAX))
}

/// As much of a wrong value as fits into a sentence.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}
