//! The objects of the simulated API server, with uids and versions, and the history of their changes for the watches.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::{Value, json};

/// Objects of one namespace, by the plural of their kind (such as `pods`) and their name.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    version: u64,
    present: BTreeMap<(String, String), Value>,
    history: Vec<Change>,
    /// A watch that begins before this version is refused.
    forgotten: u64,
}

/// An event for the watches.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) plural: String,
    pub(crate) kind: &'static str,
    pub(crate) object: Value,
}

/// An answer of the API.
pub(crate) type Answer = (StatusCode, Value);

/// A query for the objects of one kind.
pub(crate) struct Query<'a> {
    pub(crate) plural: &'a str,
    pub(crate) selector: Option<&'a str>,
    /// The field selector: `metadata.name=NAME`.
    pub(crate) field: Option<&'a str>,
    /// Maximum objects in an answer.
    pub(crate) limit: Option<usize>,
    /// The token for the next page, which is the last name of the page before.
    pub(crate) after: Option<&'a str>,
}

impl Objects {
    pub(crate) fn create(&mut self, plural: &str, object: Value, is_trial: bool) -> Answer {
        let name = object["metadata"]["name"].as_str().expect("not a name").to_owned();
        if self.present.contains_key(&(plural.to_owned(), name.clone())) {
            return failure(409, "AlreadyExists", &format!("{plural} \"{name}\" already exists"));
        }
        if is_trial {
            return (StatusCode::CREATED, object);
        }
        (StatusCode::CREATED, self.put(plural, object))
    }

    /// Writes an object without any check.
    pub(crate) fn put(&mut self, plural: &str, object: Value) -> Value {
        let kind = if self.present.contains_key(&key(plural, &object)) { "MODIFIED" } else { "ADDED" };
        let object = self.put_unreported(plural, object);
        self.note(plural, kind, object.clone());
        object
    }

    /// Writes an object without any check. No watch reports it: a watch may be late for any time.
    pub(crate) fn put_unreported(&mut self, plural: &str, mut object: Value) -> Value {
        self.version += 1;
        let key = key(plural, &object);
        let before = self.present.get(&key);
        let uid =
            before.map_or_else(|| json!(format!("uid-{}", self.version)), |before| before["metadata"]["uid"].clone());
        object["metadata"]["uid"] = uid;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.present.insert(key, object.clone());
        object
    }

    /// Removes an object. Returns whether it existed.
    pub(crate) fn remove(&mut self, plural: &str, name: &str) -> bool {
        let Some(mut object) = self.present.remove(&(plural.to_owned(), name.to_owned())) else { return false };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.note(plural, "DELETED", object);
        true
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Answer {
        match self.present.get(&(plural.to_owned(), name.to_owned())) {
            Some(object) => (StatusCode::OK, object.clone()),
            None => absent(plural, name),
        }
    }

    pub(crate) fn replace(&mut self, plural: &str, name: &str, object: Value) -> Answer {
        let Some(before) = self.present.get(&(plural.to_owned(), name.to_owned())) else { return absent(plural, name) };
        if object["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"] {
            let sentence =
                format!("Operation cannot be fulfilled on {plural} \"{name}\": the object has been modified");
            return failure(409, "Conflict", &sentence);
        }
        (StatusCode::OK, self.put(plural, object))
    }

    /// Applies a merge patch (RFC 7396).
    pub(crate) fn patch(&mut self, plural: &str, name: &str, patch: &Value) -> Answer {
        let Some(before) = self.present.get(&(plural.to_owned(), name.to_owned())) else { return absent(plural, name) };
        let mut object = before.clone();
        merge(&mut object, patch);
        (StatusCode::OK, self.put(plural, object))
    }

    pub(crate) fn delete(&mut self, plural: &str, name: &str, options: &Value) -> Answer {
        let Some(before) = self.present.get(&(plural.to_owned(), name.to_owned())) else { return absent(plural, name) };
        let wanted = &options["preconditions"]["uid"];
        if !wanted.is_null() && *wanted != before["metadata"]["uid"] {
            return failure(409, "Conflict", "the UID in the precondition does not match the UID in record");
        }
        let version = &options["preconditions"]["resourceVersion"];
        if !version.is_null() && *version != before["metadata"]["resourceVersion"] {
            return failure(409, "Conflict", "the ResourceVersion in the precondition does not match that in record");
        }
        self.remove(plural, name);
        done()
    }

    pub(crate) fn delete_all(&mut self, query: &Query<'_>) -> Answer {
        let names: Vec<String> = self.list(query).map(|object| name_of(object).to_owned()).collect();
        for name in names {
            self.remove(query.plural, &name);
        }
        done()
    }

    pub(crate) fn list_answer(&self, query: &Query<'_>) -> Answer {
        let mut left = self.list(query).skip_while(|object| query.after.is_some_and(|after| name_of(object) <= after));
        let items: Vec<&Value> = left.by_ref().take(query.limit.unwrap_or(usize::MAX)).collect();
        let is_last = left.next().is_none();
        let next = items.last().filter(|_| !is_last).map_or("", |object| name_of(object));
        let metadata = json!({ "resourceVersion": self.version.to_string(), "continue": next });
        (StatusCode::OK, json!({ "kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items }))
    }

    fn list<'a>(&'a self, query: &'a Query<'_>) -> impl Iterator<Item = &'a Value> {
        let of_plural = self.present.iter().filter(|((plural, _), _)| plural == query.plural).map(|(_, object)| object);
        of_plural.filter(|object| query.selects(object))
    }

    /// The first change after `version` that a watch with this query must report.
    pub(crate) fn next(&self, query: &Query<'_>, version: u64) -> Option<Change> {
        let is_wanted = |change: &&Change| change.plural == query.plural && query.selects(&change.object);
        self.history.iter().filter(|change| change.version > version).find(is_wanted).cloned()
    }

    /// Forgets the history, as an API server does after a while. A watch cannot resume from a forgotten version.
    pub(crate) fn forget(&mut self) {
        // Every version that a watch has seen so far is now too old.
        self.version += 1;
        self.forgotten = self.version;
        self.history.clear();
    }

    pub(crate) fn remembers(&self, version: u64) -> bool {
        version >= self.forgotten
    }

    fn note(&mut self, plural: &str, kind: &'static str, object: Value) {
        self.history.push(Change { version: self.version, plural: plural.to_owned(), kind, object });
    }
}

impl<'a> Query<'a> {
    /// All objects that `selector` selects.
    pub(crate) fn all(plural: &'a str, selector: Option<&'a str>) -> Self {
        Self { plural, selector, field: None, limit: None, after: None }
    }

    fn selects(&self, object: &Value) -> bool {
        let name = self.field.map(|field| field.strip_prefix("metadata.name=").expect("not metadata.name=NAME"));
        if name.is_some_and(|name| name_of(object) != name) {
            return false;
        }
        let mut wanted = self.selector.unwrap_or_default().split(',').filter(|part| !part.is_empty());
        wanted.all(|part| {
            let (key, value) = part.split_once('=').expect("not KEY=VALUE");
            object["metadata"]["labels"][key] == value
        })
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return *into = patch.clone() };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, field) in fields {
        merge(&mut into[name], field);
    }
    into.as_object_mut().expect("not an object").retain(|_, field| !field.is_null());
}

fn key(plural: &str, object: &Value) -> (String, String) {
    (plural.to_owned(), name_of(object).to_owned())
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("not a name")
}

fn absent(plural: &str, name: &str) -> Answer {
    failure(404, "NotFound", &format!("{plural} \"{name}\" not found"))
}

fn done() -> Answer {
    (StatusCode::OK, json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }))
}

/// A failure as an answer.
pub(crate) fn failure(code: u16, reason: &str, message: &str) -> Answer {
    let status = StatusCode::from_u16(code).expect("not an HTTP status");
    (status, status_object(code, reason, message))
}

/// A failure as a `Status` object.
pub(crate) fn status_object(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "code": code, "reason": reason, "message": message,
    })
}
