//! The fields of an object. A reader takes the fields one by one. The fields that the reader has not taken are unknown,
//! and are refused.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::similar::not_known;
use crate::template::{Findings, not_text};

/// The fields of an object that were not taken yet.
#[derive(Debug, Clone)]
pub(super) struct Fields {
    path: String,
    map: Map<String, Value>,
    /// The names that the reader has asked for.
    known: Vec<String>,
}

impl Fields {
    /// The fields of the value at this path. An absent value has no fields.
    pub(super) fn of(value: Option<Value>, path: &str, findings: &mut Findings) -> Self {
        let map = match value {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(map)) => map,
            Some(_) => {
                findings.refuse(path, "it must be an object");
                Map::new()
            }
        };
        Self { path: path.to_owned(), map, known: vec![] }
    }

    /// The path of a field.
    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The path of the object.
    pub(super) fn own_path(&self) -> &str {
        &self.path
    }

    pub(super) fn to_map(&self) -> Map<String, Value> {
        self.map.clone()
    }

    /// The names of the fields that were not taken yet.
    pub(super) fn names(&self) -> Vec<String> {
        self.map.keys().cloned().collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a field; `None` if the field is absent or null.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.known.push(name.to_owned());
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Sets a field.
    pub(super) fn put(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    pub(super) fn object(&mut self, name: &str, findings: &mut Findings) -> Self {
        let path = self.path(name);
        Self::of(self.take(name), &path, findings)
    }

    pub(super) fn text(&mut self, name: &str, findings: &mut Findings) -> Option<String> {
        let value = self.take(name)?;
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            findings.refuse(&self.path(name), not_text(&value));
        }
        text
    }

    /// Like [`Fields::text`]. Refuses an object without this field, with a hint.
    pub(super) fn required_text(&mut self, name: &str, hint: &str, findings: &mut Findings) -> Option<String> {
        if !self.has(name) {
            findings.refuse(&self.path(name), format!("it is missing: {hint}"));
        }
        self.text(name, findings)
    }

    /// Takes a whole number that is not negative.
    pub(super) fn number(&mut self, name: &str, findings: &mut Findings) -> Option<u32> {
        let value = self.take(name)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        if number.is_none() {
            findings.refuse(&self.path(name), format!("{value} is not a whole number from 0 to {}", u32::MAX));
        }
        number
    }

    /// Takes a flag. An absent flag is `false`.
    pub(super) fn flag(&mut self, name: &str, findings: &mut Findings) -> bool {
        match self.take(name) {
            None => false,
            Some(Value::Bool(flag)) => flag,
            Some(_) => {
                findings.refuse(&self.path(name), "it must be true or false");
                false
            }
        }
    }

    /// Takes an object whose values are texts, such as labels.
    pub(super) fn texts(&mut self, name: &str, findings: &mut Findings) -> BTreeMap<String, String> {
        let mut fields = self.object(name, findings);
        let names = fields.names();
        names.into_iter().filter_map(|name| Some((name.clone(), fields.text(&name, findings)?))).collect()
    }

    /// Takes a field that has no effect here, for this reason.
    pub(super) fn without_effect(&mut self, name: &str, why: &str, findings: &mut Findings) {
        if self.take(name).is_some() {
            findings.warn(&self.path(name), why);
        }
    }

    /// Refuses all fields that were not taken.
    pub(super) fn end(self, findings: &mut Findings) {
        let known: Vec<&str> = self.known.iter().map(String::as_str).collect();
        for name in self.map.keys() {
            findings.refuse(&self.path(name), not_known(name, &known));
        }
    }
}
