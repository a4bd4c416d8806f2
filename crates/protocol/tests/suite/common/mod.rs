//! Assertions about messages as JSON.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Asserts that the message is written exactly as `json`, and that reading `json` gives the same message.
#[track_caller]
pub(crate) fn assert_golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, json: &Value) {
    assert_eq!(&serde_json::to_value(message).expect("not JSON"), json, "wrong JSON of the message");
    assert_eq!(message, &read::<T>(json).expect("not a message"), "the JSON is read as another message");
}

/// Asserts that reading the message ignores an unknown field, which a newer program may send.
#[track_caller]
pub(crate) fn assert_tolerates_new_fields<T: DeserializeOwned + PartialEq + Debug>(json: &Value) {
    let read_newer: T = read(&with(json, &json!({"from_the_future": 1}))).expect("an unknown field is refused");
    assert_eq!(read_newer, read(json).expect("the message could not be read"));
}

/// A JSON object with further fields, which replace fields of the same names.
pub(crate) fn with(object: &Value, more: &Value) -> Value {
    let fields = |value: &Value| value.as_object().expect("not a JSON object").clone();
    fields(object).into_iter().chain(fields(more)).collect()
}

/// The texts between the spaces of a line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Reads a message from JSON text, as programs do.
pub(crate) fn read<T: DeserializeOwned>(json: &Value) -> Result<T, String> {
    serde_json::from_str(&json.to_string()).map_err(|error| error.to_string())
}
