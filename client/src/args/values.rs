//! Parsers of numbers and durations in flags, with their error texts.

use std::num::{IntErrorKind, ParseIntError};
use std::time::Duration;

use protocol::duration::{BadDuration, WholeSeconds};
use protocol::elastic::{BadWorkerNum, WorkerNum};
use protocol::ids::UnixMillis;
use protocol::tf_config::MEMBERS_MAX;

use crate::cluster::rfc3339;

/// A number of replicas of one role. `protocol` checks whether the numbers of all roles fit together.
pub(super) fn count(text: &str) -> Result<u32, String> {
    whole_number(text, "replicas", MEMBERS_MAX)
}

/// A number of workers, or a minimum and a maximum.
pub(super) fn workers(text: &str) -> Result<WorkerNum, String> {
    match text.parse() {
        Ok(workers) => Ok(workers),
        Err(BadWorkerNum::Shape) => {
            Err(format!("invalid number of workers \"{}\": {}", shown(text), BadWorkerNum::Shape))
        }
        Err(BadWorkerNum::Number(_)) => {
            let (min, max) = text.split_once(':').unwrap_or(("1", text));
            Err(count(min).and(count(max)).err().unwrap_or_default())
        }
    }
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

/// Parses a number. If the number is too large to parse, the error names `greatest` as the limit.
fn whole_number(text: &str, what: &str, greatest: u32) -> Result<u32, String> {
    text.parse().map_err(|error: ParseIntError| {
        let wrong = if *error.kind() == IntErrorKind::PosOverflow {
            format!("the maximum is {greatest}")
        } else {
            "use a whole number, 0 or more".to_owned()
        };
        format!("invalid number of {what} \"{}\": {wrong}", shown(text))
    })
}

pub(super) fn exit_code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| format!("invalid exit code \"{}\": use numbers from 0 to 255, such as 2,3", shown(text)))
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| invalid_duration(text, BadDuration::Shape))
}

/// A duration of whole seconds.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    text.parse::<WholeSeconds>().map(|WholeSeconds(seconds)| seconds).map_err(|error| invalid_duration(text, error))
}

/// A time in RFC 3339.
pub(super) fn moment(text: &str) -> Result<UnixMillis, String> {
    let wrong = || format!("invalid time \"{}\": use RFC 3339, such as 2026-11-24T00:00:00Z", shown(text));
    rfc3339::parsed(text).ok_or_else(wrong)
}

fn invalid_duration(text: &str, error: BadDuration) -> String {
    let positive = text.strip_prefix('-').filter(|rest| humantime::parse_duration(rest).is_ok());
    let advice = positive.map_or_else(|| error.to_string(), |rest| format!("write {rest}, without a minus sign"));
    format!("invalid duration \"{}\": {advice}", shown(text))
}

/// The first 40 characters of an invalid value, so that it fits into a sentence.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}
