//! Ignores unknown fields of structs that refuse them. A request and a record contain the same structs. In a request, an
//! unknown field is a mistake. In a record or an answer, a newer program may have added it.

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde_json::Value;

/// Removes the fields that the struct `T` does not have from a JSON object.
pub(crate) fn keep_fields_of<'de, T: Deserialize<'de>>(object: &mut Value) {
    let mut known: &[&str] = &[];
    // This always fails, because there is no value to read.
    drop(T::deserialize(FieldNames(&mut known)));
    if let Value::Object(fields) = object {
        fields.retain(|name, _| known.contains(&name.as_str()));
    }
}

/// Stores the names of the fields that a struct reads. Contains no value.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = names;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("there is no value"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
