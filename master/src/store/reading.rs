//! Parses the text of a record, or returns why the text is not a record. An unreadable record does not affect other
//! jobs, whatever its content is.

use protocol::ids::JobName;
use protocol::job::SpecError;
use serde::Deserialize;

use super::{FORMAT, FORMAT_OF_SEVERAL, JobRecord};

/// Maximum characters of a reason. serde quotes values, which may be very long.
const REASON_CHARS_MAX: usize = 200;
/// Maximum of a counter in a record. The master adds to counters, and adds counters up.
const COUNT_MAX: u64 = 1 << 30;
/// Maximum of a number that is not limited to 32 bits: a revision, or milliseconds.
const LONG_MAX: u64 = 1 << 53;
/// Maximum characters of a uid.
const UID_MAX: usize = 64;

/// Why a text was not read as a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRead {
    /// The text is not a record, for this reason.
    Invalid(String),
    /// Another version of the master wrote the record, in this format.
    OtherFormat(u32),
}

#[derive(Deserialize)]
struct FormatAlone {
    format: u32,
}

impl JobRecord {
    /// Reads the record of the job with this name. Ignores unknown fields.
    pub fn read(name: &JobName, text: &[u8]) -> Result<Self, NotRead> {
        // Another format may differ in all other fields, so the format is read first.
        match serde_json::from_slice(text) {
            Ok(FormatAlone { format }) if !(FORMAT..=FORMAT_OF_SEVERAL).contains(&format) => {
                Err(NotRead::OtherFormat(format))
            }
            Ok(_) | Err(_) => Self::read_known(name, text).map_err(NotRead::Invalid),
        }
    }

    fn read_known(name: &JobName, text: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(text).map_err(|error| shortened(&error.to_string()))?;
        record.check(name)?;
        Ok(record)
    }

    /// Checks the fields whose types allow more than a master can use.
    fn check(&self, name: &JobName) -> Result<(), String> {
        let Self { uid, spec, epoch, desired, .. } = self;
        if spec.name != *name {
            return Err(format!("it is the record of a job named \"{}\"", spec.name));
        }
        if !is_uid(uid) {
            return Err(format!("\"{}\" is not a uid", shortened(uid)));
        }
        // The next takeover adds one to the epoch, and the result must be readable too.
        if *epoch >= u32::MAX - 1 {
            return Err("its epoch cannot be raised any more".to_owned());
        }
        if let Some(workers) = desired {
            let is_elastic = spec.workers().ok_or(SpecError::NotElastic);
            is_elastic
                .and_then(|_| spec.check_workers(*workers))
                .map_err(|error| format!("its field desired is invalid: {error}"))?;
        }
        self.check_counters()
    }

    fn check_counters(&self) -> Result<(), String> {
        let Self { restarts, suspension, .. } = self;
        let counts = [
            ("pushes", u64::from(self.pushes), COUNT_MAX),
            ("restarts.counted", restarts.counted.into(), COUNT_MAX),
            ("restarts.uncounted", restarts.uncounted.into(), COUNT_MAX),
            ("suspension.starts", suspension.starts.into(), COUNT_MAX),
            ("suspension.earlier_millis", suspension.earlier_millis, LONG_MAX),
            ("revision", self.revision, LONG_MAX),
        ];
        match counts.into_iter().find(|(_, count, most)| count > most) {
            Some((field, count, most)) => Err(format!("its field {field} is {count}, above {most}")),
            None => Ok(()),
        }
    }
}

/// The uid in an unreadable text, if it can be found; otherwise empty.
pub(super) fn uid_in(text: &[u8]) -> String {
    #[derive(Deserialize)]
    struct UidAlone {
        uid: String,
    }
    let found: Option<UidAlone> = serde_json::from_slice(text).ok();
    found.map(|found| found.uid).filter(|uid| is_uid(uid)).unwrap_or_default()
}

/// A uid names the folder of the job's output, so it must not contain `/` or `..`.
fn is_uid(text: &str) -> bool {
    let length_ok = (1..=UID_MAX).contains(&text.len());
    length_ok && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn shortened(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).collect()
}
