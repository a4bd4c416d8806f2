//! Records as no master has written them, for tests and fuzzing: what a broken disk, a hand or a newer program leaves.

use serde_json::{Map, Value, json};

use super::JobRecord;

/// Deeper than any parser of JSON follows.
const DEEP: usize = 20_000;

/// The text of `record`, damaged in a way that `seed` chooses. Now and then it can be read all the same.
///
/// # Panics
/// When `record` is no JSON.
pub fn damaged(record: &JobRecord, seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    let mut value = serde_json::to_value(record).expect("a record is JSON");
    let text = value.to_string();
    match dice.below(10) {
        0 => flipped(text.into_bytes(), &mut dice),
        1 => text.as_bytes()[..dice.below(text.len())].to_vec(),
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
            replaced(&mut value, HUGE[dice.below(HUGE.len())], &mut dice)
        }
        6 => replaced(&mut value, &("[".repeat(DEEP) + &"]".repeat(DEEP)), &mut dice),
        7 => {
            let mut bytes = text.into_bytes();
            let place = dice.below(bytes.len());
            bytes[place] = [0xff, 0xc0, 0x80, 0xed, 0][dice.below(5)];
            bytes
        }
        8 => ["", " ", "null", "[]", "{}", "{\"uid\":\"a\"}", "\u{feff}{}", "true"][dice.below(8)].as_bytes().to_vec(),
        _ => {
            with_some_object(&mut value, &mut dice, |object, _| {
                object.insert("from_the_future".to_owned(), json!({"a": [1, null]}));
            });
            value.to_string().into_bytes()
        }
    }
}

/// Numbers that follow from a seed (splitmix64), so that a test that failed fails again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let choices = u64::try_from(end.max(1)).unwrap_or(u64::MAX);
        usize::try_from((mixed ^ (mixed >> 31)) % choices).unwrap_or(0)
    }
}

fn flipped(mut bytes: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    for _ in 0..=dice.below(3) {
        let place = dice.below(bytes.len());
        bytes[place] ^= 1 << dice.below(8);
    }
    bytes
}

/// The same key twice, with the same value or another.
fn duplicated(text: &str, dice: &mut Dice) -> Vec<u8> {
    const AGAIN: [&str; 4] = ["\"epoch\":1,", "\"uid\":\"other\",", "\"spec\":{},", "\"wish\":\"delete\","];
    format!("{{{}{}", AGAIN[dice.below(AGAIN.len())], &text[1..]).into_bytes()
}

fn another_type(dice: &mut Dice) -> Value {
    let values = [json!(null), json!(true), json!(7), json!(-0.5), json!("text"), json!([]), json!([1]), json!({})];
    values[dice.below(values.len())].clone()
}

/// The text in which one value is `by`, which may be none that a [`Value`] can hold.
fn replaced(value: &mut Value, by: &str, dice: &mut Dice) -> Vec<u8> {
    const MARK: &str = "\u{1}here\u{1}";
    *some_node(value, dice) = json!(MARK);
    value.to_string().replace(&json!(MARK).to_string(), by).into_bytes()
}

fn remove_some(object: &mut Map<String, Value>, dice: &mut Dice) {
    if let Some(key) = object.keys().nth(dice.below(object.len())).cloned() {
        object.remove(&key);
    }
}

/// A value somewhere below this one.
fn some_node<'a>(value: &'a mut Value, dice: &mut Dice) -> &'a mut Value {
    let count = match value {
        Value::Object(object) => object.len(),
        Value::Array(array) => array.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    if count == 0 {
        return value;
    }
    let place = dice.below(count);
    let child = match value {
        Value::Object(object) => object.values_mut().nth(place),
        Value::Array(array) => array.get_mut(place),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    };
    let child = child.expect("the place is below the count");
    if dice.below(3) == 0 { child } else { some_node(child, dice) }
}

fn with_some_object(value: &mut Value, dice: &mut Dice, change: impl FnOnce(&mut Map<String, Value>, &mut Dice)) {
    let place = dice.below(3);
    let parts = ["spec", "ended"];
    let inner = parts.get(place).and_then(|part| value.get(part)).is_some_and(Value::is_object);
    let object = if inner { value.get_mut(parts[place]) } else { Some(value) };
    if let Some(object) = object.and_then(Value::as_object_mut) {
        change(object, dice);
    }
}
