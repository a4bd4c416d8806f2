//! Reads a template as Kubernetes does. Names all values of a wrong type and all unknown fields, each with its path.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};
use serde_path_to_error::{Path, Segment};

use super::fields::{FieldGroup, POD_TEMPLATE, inner, rule_of};
use super::{Findings, is_empty};
use crate::similar::not_known;

/// Maximum values of a wrong type that are named.
const NAMED_MAX: usize = 50;
/// The path of the whole template.
const WHOLE: &str = "template";

/// Refuses values of a wrong type, and replaces each by a value of the right type. Refuses and removes the fields that
/// Kubernetes does not define: otherwise these fields would be lost silently.
pub(super) fn mend(pod: &mut Value, findings: &mut Findings) {
    for _ in 0..NAMED_MAX {
        match serde_path_to_error::deserialize::<_, PodTemplateSpec>(&*pod) {
            Ok(typed) => {
                let read = serde_json::to_value(&typed).unwrap_or_default();
                return remove_unknown("", pod, &read, POD_TEMPLATE, findings);
            }
            Err(error) => {
                let Some((path, wrong)) = at(pod, error.path()) else { break };
                let (why, right) = cure(wrong, &error.inner().to_string());
                findings.refuse(if path.is_empty() { WHOLE } else { &path }, why);
                *wrong = right;
            }
        }
    }
    findings.refuse(WHOLE, "it is not a pod template");
}

/// The value at this path, and the path as text.
fn at<'a>(pod: &'a mut Value, path: &Path) -> Option<(String, &'a mut Value)> {
    let (mut text, mut value) = (String::new(), pod);
    for segment in path.iter() {
        value = match segment {
            Segment::Seq { index } => {
                text.push_str(&format!("[{index}]"));
                value.get_mut(index)?
            }
            Segment::Map { key } => {
                text = child(&text, key);
                value.get_mut(key)?
            }
            Segment::Enum { .. } | Segment::Unknown => return None,
        };
    }
    Some((text, value))
}

/// The path of a field of the object at `path`. Names such as `sidecar.istio.io/inject` are in brackets.
fn child(path: &str, name: &str) -> String {
    let is_plain = name.chars().all(|letter| letter.is_ascii_alphanumeric());
    match (is_plain, path) {
        (false, _) => format!("{path}[\"{name}\"]"),
        (true, "") => name.to_owned(),
        (true, _) => format!("{path}.{name}"),
    }
}

/// What is wrong with a value that serde has refused with this error, and a value that serde accepts in its place.
fn cure(wrong: &Value, error: &str) -> (String, Value) {
    let unquoted = if wrong.is_string() { ", without quotation marks" } else { "" };
    match error.rsplit_once("expected ").map(|(_, expected)| expected) {
        Some("a string" | "Quantity") => (not_text(wrong), "".into()),
        Some("a boolean") => (format!("it must be true or false{unquoted}"), false.into()),
        Some("a sequence") => (not_list(wrong), json!([])),
        Some("i32" | "i64") => (format!("it must be a whole number{unquoted}"), 1.into()),
        Some("IntOrString") => ("it must be a whole number or a string".to_owned(), 1.into()),
        Some(_) => ("it must be an object".to_owned(), json!({})),
        None => (error.to_owned(), Value::Null),
    }
}

/// What is wrong with a value that is not a string.
pub fn not_text(value: &Value) -> String {
    match value {
        Value::Bool(_) | Value::Number(_) => format!("it must be a string: write \"{value}\""),
        Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => "it must be a string".to_owned(),
    }
}

/// What is wrong with a value that is not a list.
pub(crate) fn not_list(value: &Value) -> String {
    match value.as_str().filter(|text| !text.contains(['"', '\'', '\\', '&', '|', ';', '<', '>'])) {
        Some(text) => format!("it must be a list: write {}", json!(text.split_whitespace().collect::<Vec<_>>())),
        None => "it must be a list".to_owned(),
    }
}

/// Removes the fields that `read` lacks, except for fields with a rule, such as fields of newer versions of Kubernetes.
fn remove_unknown(path: &str, given: &mut Value, read: &Value, rules: FieldGroup, findings: &mut Findings) {
    match given {
        Value::Object(fields) => fields.retain(|name, value| {
            let (path, rule) = (child(path, name), rule_of(rules, name));
            let is_unknown = rule.is_none() && read[name].is_null() && !is_empty(value);
            if is_unknown {
                let known: Vec<&str> = rules.iter().flat_map(|(names, _)| names.iter().copied()).collect();
                findings.refuse(&path, not_known(name, &known));
            } else if !read[name].is_null() {
                remove_unknown(&path, value, &read[name], rule.map_or(&[], inner), findings);
            }
            !is_unknown
        }),
        Value::Array(items) => items.iter_mut().enumerate().for_each(|(place, item)| {
            remove_unknown(&format!("{path}[{place}]"), item, &read[place], rules, findings);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
