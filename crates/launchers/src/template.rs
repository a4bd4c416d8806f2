//! Checks the pod templates that users bring: which fields pass, which have no effect, and which are refused. A
//! template must not give a pod more rights than a pod without a template has.

mod fields;
mod typed;

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use protocol::group::{Group, Template};
use protocol::job::JobSpec;
use protocol::origin::Warning;
use serde_json::Value;

pub(crate) use self::fields::BESIDE_REPLICAS;
use self::fields::{POD_TEMPLATE, Rule, is_zero_or_false, rule_of};
pub use self::fields::{is_masters, is_masters_claim};
pub(crate) use self::typed::not_list;
pub use self::typed::not_text;

/// The product's name. The names of its own objects begin with this name.
pub const MUSTER: &str = "muster";

/// What the master's configuration and the job allow in a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// Whether a pod may mount folders of its node.
    pub host_volumes: bool,
    /// Whether a container may run as root.
    pub root: bool,
}

/// A template that has passed the checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// The template without the fields that have no effect.
    pub pod: PodTemplateSpec,
    /// The fields that have no effect, each with the reason.
    pub warnings: Vec<Note>,
}

/// A field of a template, and a sentence about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The path of the field, such as `spec.containers[0].stdin`.
    pub path: String,
    /// What the field means for the job, or why the field is refused.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.why)
    }
}

/// What a check has found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The fields that are refused.
    pub(crate) refused: Vec<Note>,
    /// The fields that have another meaning in Muster, or no effect.
    pub(crate) warnings: Vec<Note>,
}

impl Findings {
    pub(crate) fn refuse(&mut self, path: &str, why: impl Into<String>) {
        self.refused.push(Note { path: path.to_owned(), why: why.into() });
    }

    /// Adds notes, except those of fields that are refused already.
    pub(crate) fn refuse_others(&mut self, notes: impl Iterator<Item = Note>) {
        let refused: BTreeSet<String> = self.refused.iter().map(|note| note.path.clone()).collect();
        self.refused.extend(notes.filter(|note| !refused.contains(&note.path)));
    }

    pub(crate) fn warn(&mut self, path: &str, why: impl Into<String>) {
        self.warnings.push(Note { path: path.to_owned(), why: why.into() });
    }
}

/// All notes in one line.
pub fn listed(notes: &[Note]) -> String {
    notes.iter().map(Note::to_string).collect::<Vec<_>>().join("; ")
}

/// Checks a template.
///
/// # Errors
/// Returns all refused fields.
pub fn checked(template: &Template, allowed: Allowed) -> Result<Checked, Vec<Note>> {
    let Template { container, tf_port: _, pod } = template;
    let mut kept = pod.clone();
    let mut findings = Findings::default();
    typed::mend(&mut kept, &mut findings);
    let mut review = Review { allowed, run: container, findings };
    review.object("", &mut kept, POD_TEMPLATE);
    review.run_container(&kept);
    let Findings { mut refused, warnings } = review.findings;
    let of_library = |error| Note { path: "template".to_owned(), why: format!("it is not a pod template: {error}") };
    let typed =
        if refused.is_empty() { serde_json::from_value(kept).map_err(of_library) } else { Err(refused.remove(0)) };
    typed.map(|pod| Checked { pod, warnings }).map_err(|first| [vec![first], refused].concat())
}

/// The values of a wrong type in a pod template, and the fields that Kubernetes does not define.
pub(crate) fn misread(pod: &Value) -> Vec<Note> {
    let mut findings = Findings::default();
    typed::mend(&mut pod.clone(), &mut findings);
    findings.refused
}

/// Names the fields that have no effect in the templates of a job.
pub fn warnings(spec: &JobSpec) -> Vec<Warning> {
    // Allow everything: the warnings are the same, and the back end refuses the fields that are not allowed.
    let allowed = Allowed { host_volumes: true, root: true };
    let of_group = |(place, group): (usize, &Group)| {
        let notes = group.template.as_ref().and_then(|template| checked(template, allowed).ok());
        let notes = notes.map(|checked| checked.warnings).unwrap_or_default();
        notes.into_iter().map(move |Note { path, why }| Warning {
            path: format!("groups[{place}].template.pod.{path}"),
            sentence: why,
        })
    };
    spec.groups.iter().enumerate().flat_map(of_group).collect()
}

/// A check in progress, with its findings so far.
struct Review<'a> {
    allowed: Allowed,
    /// The name of the container that runs the script.
    run: &'a str,
    findings: Findings,
}

impl Review<'_> {
    /// Reviews each field of an object by the rule of its name, and removes fields that have no effect.
    fn object(&mut self, path: &str, object: &mut Value, rules: fields::FieldGroup) {
        let Value::Object(fields) = object else { return };
        fields.retain(|name, value| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            if is_empty(value) {
                return false;
            }
            match rule_of(rules, name) {
                Some(rule) => self.field(&path, value, rule),
                None => {
                    self.findings.refuse(&path, "this field is not supported");
                    false
                }
            }
        });
    }

    /// Reviews one field. Returns whether the field stays.
    fn field(&mut self, path: &str, value: &mut Value, rule: &Rule) -> bool {
        match rule {
            Rule::Keep => {}
            Rule::Drop(why) => {
                self.findings.warn(path, *why);
                return false;
            }
            Rule::DropSilently => return false,
            Rule::Refuse(_) if is_zero_or_false(value) => return false,
            Rule::Refuse(why) => self.findings.refuse(path, *why),
            Rule::Object(rules) => self.object(path, value, rules),
            Rule::Each(rules) => self.each(path, value, |review, path, item| review.object(path, item, rules)),
            Rule::Containers => self.each(path, value, |review, path, container| {
                if container.get("name").and_then(Value::as_str) == Some(review.run) {
                    review.drop_fields_of_the_run(path, container);
                }
                review.object(path, container, fields::CONTAINER);
            }),
            Rule::Check(check) => {
                if let Some(why) = check(value, self.allowed) {
                    self.findings.refuse(path, why);
                }
            }
        }
        true
    }

    /// Reviews each item of a list.
    fn each(&mut self, path: &str, list: &mut Value, mut review: impl FnMut(&mut Self, &str, &mut Value)) {
        let Value::Array(items) = list else { return };
        for (place, item) in items.iter_mut().enumerate() {
            review(self, &format!("{path}[{place}]"), item);
        }
    }

    fn drop_fields_of_the_run(&mut self, path: &str, container: &mut Value) {
        let Value::Object(container) = container else { return };
        for name in fields::NOT_OF_THE_RUN {
            if container.remove(name).is_some_and(|value| !is_empty(&value)) {
                self.findings.warn(&format!("{path}.{name}"), fields::BY_THE_AGENT);
            }
        }
    }

    /// Refuses a template that has no container for the script, or several.
    fn run_container(&mut self, pod: &Value) {
        let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
        let named = |container: &&Value| container.get("name").and_then(Value::as_str) == Some(self.run);
        match containers.into_iter().flatten().filter(named).count() {
            1 => {}
            number => {
                let why = format!(
                    "{number} containers are named \"{}\": give this name to exactly one container, which runs the script",
                    self.run
                );
                self.findings.refuse("spec.containers", why);
            }
        }
    }
}

/// Whether a value is null, or has no items.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
