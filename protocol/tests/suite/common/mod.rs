//! What the tests of the wire share.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The message is written exactly as `json`, and read back as it was.
#[track_caller]
pub(crate) fn assert_golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, json: &Value) {
    assert_eq!(&serde_json::to_value(message).expect("a message is JSON"), json, "written");
    assert_eq!(message, &read::<T>(json).expect("what was written can be read"), "read back");
}

/// An answer of a newer program, with a field that this one does not know, is read as if the field were not there.
#[track_caller]
pub(crate) fn assert_tolerates_new_fields<T: DeserializeOwned + PartialEq + Debug>(json: &Value) {
    let mut newer = json.clone();
    newer.as_object_mut().expect("a message is a JSON object").insert("from_the_future".into(), Value::from(1));
    let read_newer: T = read(&newer).expect("a new field is tolerated");
    assert_eq!(read_newer, read(json).expect("the same without the new field"));
}

/// Reads a message from its JSON text, as programs do.
pub(crate) fn read<T: DeserializeOwned>(json: &Value) -> Result<T, String> {
    serde_json::from_str(&json.to_string()).map_err(|error| error.to_string())
}
