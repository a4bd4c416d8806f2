//! Parsers of numbers, groups of workers and durations in flags, with their error texts.

use std::fmt;
use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;
use std::time::Duration;

use protocol::duration::{BadDuration, WholeSeconds};
use protocol::elastic::{BadWorkerNum, WorkerNum};
use protocol::group::Group;
use protocol::ids::{Role, UnixMillis};
use protocol::metric::{BadPattern, Pattern};
use protocol::tf_config::MEMBERS_MAX;
use protocol::view::JobState;

use launchers::timestamp;

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

/// The state of a job, by its name.
pub(super) fn state(text: &str) -> Result<JobState, String> {
    JobState::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
        let names = JobState::ALL.map(JobState::as_str).join(", ");
        format!("\"{}\" is not a state; the states are {names}", shown(text))
    })
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

/// Workers with the same resources, such as `cpu=6,memory=8Gi:2` for two workers. The number follows the last colon,
/// because an amount may contain a colon too.
pub(super) fn group(text: &str) -> Result<Group, String> {
    let form = "write RESOURCE=AMOUNT[,...]:NUMBER with cpu, memory, gpus or batch, such as cpu=6,memory=8Gi:2";
    let bad = |why: &dyn fmt::Display| format!("{why}; {form}");
    let (resources, number) = text.rsplit_once(':').ok_or_else(|| bad(&"the number of workers is missing"))?;
    let count = match number.parse() {
        Ok(0) => return Err(bad(&"the number of workers is 0")),
        Ok(count) => count,
        Err(_) => return Err(bad(&format!("\"{number}\" is not a number of workers"))),
    };
    let mut group = Group::new(Role::Worker, count);
    for resource in resources.split(',') {
        let (name, amount) = resource.split_once('=').ok_or_else(|| bad(&format!("\"{resource}\" names no amount")))?;
        let is_new = match name {
            "cpu" => group.cpu.replace(amount.parse().map_err(|error| bad(&error))?).is_none(),
            "memory" => group.memory.replace(amount.parse().map_err(|error| bad(&error))?).is_none(),
            "gpus" => group.gpus.replace(amount.parse().map_err(|error| bad(&error))?).is_none(),
            "batch" => group.batch.replace(amount.parse().map_err(|error| bad(&error))?).is_none(),
            _ => return Err(bad(&format!("\"{name}\" is not a resource"))),
        };
        if !is_new {
            return Err(bad(&format!("{name} is named twice")));
        }
    }
    Ok(group)
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
    timestamp::time_of(text).ok_or_else(wrong)
}

fn invalid_duration(text: &str, error: BadDuration) -> String {
    let positive = text.strip_prefix('-').filter(|rest| humantime::parse_duration(rest).is_ok());
    let advice = positive.map_or_else(|| error.to_string(), |rest| format!("write {rest}, without a minus sign"));
    format!("invalid duration \"{}\": {advice}", shown(text))
}

/// The first 40 characters of an invalid value, for an error sentence.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// A metric: its name, and the pattern of its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Metric(pub(crate) String, pub(crate) Pattern);

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, pattern) = text.split_once('=').ok_or("write NAME=REGEX, such as loss='loss: ([0-9.]+)'")?;
        let pattern = pattern.parse().map_err(|error: BadPattern| error.to_string())?;
        Ok(Self(name.to_owned(), pattern))
    }
}

#[cfg(test)]
mod tests {
    use protocol::batching::BatchBounds;

    use super::*;

    #[test]
    fn the_last_colon_of_a_group_separates_the_amounts_from_the_number_of_workers() {
        let group = group("cpu=2:4,memory=8Gi,gpus=1,batch=16..32:3").unwrap();
        assert_eq!(group.batch, Some(BatchBounds { min: 16, max: 32 }));
        assert_eq!((group.role, group.count, group.gpus), (Role::Worker, 3, Some(1)));
        assert_eq!(group.cpu.map(|cpu| (cpu.request, cpu.limit)), Some(("2".to_owned(), "4".to_owned())));
        assert_eq!(group.memory.map(|memory| memory.to_string()), Some("8Gi".to_owned()));
    }

    #[test]
    fn a_malformed_group_is_refused_with_the_reason() {
        for (text, why) in [
            ("cpu=2", "the number of workers is missing"),
            ("cpu=2:0", "the number of workers is 0"),
            ("cpu=2:two", "\"two\" is not a number of workers"),
            ("2:4", "\"2\" names no amount"),
            (":4", "\"\" names no amount"),
            ("disk=2:4", "\"disk\" is not a resource"),
            ("cpu=1,cpu=2:4", "cpu is named twice"),
            ("cpu=x:4", "\"x\" is not a valid amount"),
            ("gpus=-1:4", "invalid digit"),
            ("batch=0:2", "\"0\" is not a batch"),
            ("batch=32..16:2", "\"32..16\" is not a batch"),
            ("batch=1..:2", "is not a batch"),
            ("batch=1..2..3:2", "is not a batch"),
        ] {
            let error = group(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
