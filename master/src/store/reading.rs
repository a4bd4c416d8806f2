//! From the text that a store holds to a record, or why it is none. Whatever stands there, one record that cannot be
//! read is set aside, and the others are served.

use protocol::ids::JobName;
use serde::Deserialize;

use super::JobRecord;

/// Most characters of a reason. serde repeats values, which may be endless.
const REASON_CHARS_MAX: usize = 200;
/// Most characters of a uid.
const UID_MAX: usize = 64;

impl JobRecord {
    /// Reads the record of the job of this name. Fields that a newer master has added are passed over.
    ///
    /// # Errors
    /// Why it is none, in a sentence.
    pub fn read(name: &JobName, text: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(text).map_err(|error| shortened(&error.to_string()))?;
        let JobRecord { uid, spec, epoch, .. } = &record;
        if spec.name != *name {
            return Err(format!("it is the record of a job named \"{}\"", spec.name));
        }
        if !is_uid(uid) {
            return Err(format!("\"{}\" is no uid", shortened(uid)));
        }
        // Whoever takes the job over raises it once more, and must be able to read what it wrote.
        if *epoch >= u32::MAX - 1 {
            return Err("its epoch cannot be raised any more".to_owned());
        }
        Ok(record)
    }
}

/// The uid in a text that is no record, where one can be made out; else nothing.
pub(super) fn uid_in(text: &[u8]) -> String {
    #[derive(Deserialize)]
    struct UidAlone {
        uid: String,
    }
    let found: Option<UidAlone> = serde_json::from_slice(text).ok();
    found.map(|found| found.uid).filter(|uid| is_uid(uid)).unwrap_or_default()
}

/// A uid names the folder of the job's output, and must not lead elsewhere.
fn is_uid(text: &str) -> bool {
    let length_ok = (1..=UID_MAX).contains(&text.len());
    length_ok && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn shortened(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).collect()
}
