//! Damaged records for tests and fuzzing, as a broken disk, a manual edit or a newer program may leave them.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use master::store::JobRecord;

/// A depth of nesting that `serde_json` does not accept.
const DEEP: usize = 20_000;

/// The text of `record` with damage that `seed` chooses. Sometimes the record is still readable.
///
/// # Panics
/// If `record` does not serialize to JSON.
pub fn damaged(record: &JobRecord, seed: u64) -> Vec<u8> {
    let mut dice = Rng::with_seed(seed);
    let mut value = serde_json::to_value(record).expect("a record is JSON");
    let text = value.to_string();
    match dice.usize(..10) {
        0 => flipped(text.into_bytes(), &mut dice),
        1 => text.as_bytes()[..dice.usize(..text.len())].to_vec(),
        2 => {
            with_some_object(&mut value, &mut dice, remove_some);
            value.to_string().into_bytes()
        }
        3 => duplicated(&text, &mut dice),
        4 => {
            *some_node(&mut value, &mut dice) = another_type(&mut dice);
            value.to_string().into_bytes()
        }
        5 => {
            const HUGE: [&str; 5] =
                ["1e999", "-1", "18446744073709551616", "4294967295", "100000000000000000000000000000000000000000"];
            replaced(&mut value, HUGE[dice.usize(..HUGE.len())], &mut dice)
        }
        6 => replaced(&mut value, &("[".repeat(DEEP) + &"]".repeat(DEEP)), &mut dice),
        7 => {
            let mut bytes = text.into_bytes();
            let place = dice.usize(..bytes.len());
            bytes[place] = [0xff, 0xc0, 0x80, 0xed, 0][dice.usize(..5)];
            bytes
        }
        8 => {
            ["", " ", "null", "[]", "{}", "{\"uid\":\"a\"}", "\u{feff}{}", "true"][dice.usize(..8)].as_bytes().to_vec()
        }
        _ => {
            with_some_object(&mut value, &mut dice, |object, _| {
                object.insert("from_the_future".to_owned(), json!({"a": [1, null]}));
            });
            value.to_string().into_bytes()
        }
    }
}

fn flipped(mut bytes: Vec<u8>, dice: &mut Rng) -> Vec<u8> {
    for _ in 0..=dice.usize(..3) {
        let place = dice.usize(..bytes.len());
        bytes[place] ^= 1 << dice.usize(..8);
    }
    bytes
}

/// Repeats a key, with the same value or a different value.
fn duplicated(text: &str, dice: &mut Rng) -> Vec<u8> {
    const AGAIN: [&str; 4] = ["\"epoch\":1,", "\"uid\":\"other\",", "\"spec\":{},", "\"wish\":\"delete\","];
    format!("{{{}{}", AGAIN[dice.usize(..AGAIN.len())], &text[1..]).into_bytes()
}

fn another_type(dice: &mut Rng) -> Value {
    let values = [json!(null), json!(true), json!(7), json!(-0.5), json!("text"), json!([]), json!([1]), json!({})];
    values[dice.usize(..values.len())].clone()
}

/// Replaces one value by the text `by`, which may be invalid JSON.
fn replaced(value: &mut Value, by: &str, dice: &mut Rng) -> Vec<u8> {
    const MARK: &str = "\u{1}here\u{1}";
    *some_node(value, dice) = json!(MARK);
    value.to_string().replace(&json!(MARK).to_string(), by).into_bytes()
}

fn remove_some(object: &mut Map<String, Value>, dice: &mut Rng) {
    let keys: Vec<String> = object.keys().cloned().collect();
    if let Some(key) = dice.choice(keys) {
        object.remove(&key);
    }
}

/// A random value inside `value`.
fn some_node<'a>(value: &'a mut Value, dice: &mut Rng) -> &'a mut Value {
    let count = match value {
        Value::Object(object) => object.len(),
        Value::Array(array) => array.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    if count == 0 {
        return value;
    }
    let place = dice.usize(..count);
    let child = match value {
        Value::Object(object) => object.values_mut().nth(place),
        Value::Array(array) => array.get_mut(place),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    };
    let child = child.expect("the place is below the count");
    if dice.usize(..3) == 0 { child } else { some_node(child, dice) }
}

fn with_some_object(value: &mut Value, dice: &mut Rng, change: impl FnOnce(&mut Map<String, Value>, &mut Rng)) {
    let place = dice.usize(..3);
    let parts = ["spec", "ended"];
    let inner = parts.get(place).and_then(|part| value.get(part)).is_some_and(Value::is_object);
    let object = if inner { value.get_mut(parts[place]) } else { Some(value) };
    if let Some(object) = object.and_then(Value::as_object_mut) {
        change(object, dice);
    }
}
