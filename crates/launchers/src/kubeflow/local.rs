//! A TFJob on a machine without a cluster. The replicas are processes, so only the program and the variables of each
//! pod have an effect.

use std::path::Path;

use protocol::env::EnvName;
use protocol::tfjob::TfJobOptions;
use serde_json::{Map, Value, json};

use super::container::{is_free, variables};
use crate::template::{BESIDE_REPLICAS, Findings};

const NO_MEANING: &str = "it has no meaning here: replicas are processes of this machine";
/// Programs of images that a machine usually has too.
const PROGRAMS: [&str; 4] = ["python", "python3", "bash", "sh"];
/// Fields of a container that have an effect here, or that need no warning.
const READ: [&str; 6] = ["args", "command", "env", "imagePullPolicy", "name", "ports"];
/// Fields of a pod that have an effect here, or that need no warning.
const READ_OF_POD: [&str; 2] = ["containers", "restartPolicy"];

/// Removes the fields and the containers that have no meaning for processes. Warns of each removed field and container.
pub(super) fn simplify(
    template: &mut Value,
    (path, position): (&str, usize),
    options: &TfJobOptions,
    findings: &mut Findings,
) {
    let Some(pod) = template["spec"].as_object_mut() else { return };
    if pod.contains_key("restartPolicy") {
        findings.warn(&format!("{path}.spec.restartPolicy"), BESIDE_REPLICAS);
    }
    keep(pod, &READ_OF_POD, &format!("{path}.spec"), findings);
    let Some(Value::Array(containers)) = pod.get_mut("containers") else { return };
    for place in (0..containers.len()).filter(|place| *place != position) {
        findings.warn(&format!("{path}.spec.containers[{place}]"), NO_MEANING);
    }
    let mut container = containers.swap_remove(position);
    let path = format!("{path}.spec.containers[{position}]");
    let env: Vec<Value> = variables(&container, &path, findings)
        .into_iter()
        .filter(|variable| has_value(variable, options, findings))
        .map(|(_, name, variable)| {
            name.and_then(|name| known_here(&name, variable, options)).unwrap_or(variable.clone())
        })
        .collect();
    if let Some(fields) = container.as_object_mut() {
        keep(fields, &READ, &path, findings);
        fields.remove("env");
        if !env.is_empty() {
            fields.insert("env".to_owned(), Value::Array(env));
        }
    }
    *containers = vec![container];
}

/// A variable with the value of `--env`, if its own value comes from the cluster. Other variables may contain this value.
fn known_here(name: &EnvName, variable: &Value, options: &TfJobOptions) -> Option<Value> {
    let value = options.env.get(name).filter(|_| !variable["valueFrom"].is_null())?;
    Some(json!({ "name": name.as_str(), "value": value }))
}

/// Whether the agent gets this variable with the value in the file. A value of `--env` replaces it later, but other
/// variables may contain the value in the file. Refuses, or warns of, a variable that cannot be used.
fn has_value(
    (path, name, variable): &(String, Option<EnvName>, &Value),
    options: &TfJobOptions,
    findings: &mut Findings,
) -> bool {
    let Some(name) = name else {
        findings.refuse(path, "a variable's name has letters, digits and '_', and no digit at the beginning");
        return false;
    };
    let is_replaced = options.env.contains_key(name);
    if !variable["valueFrom"].is_null() {
        if !is_replaced {
            findings.refuse(path, format!("its value comes from the cluster: set the value with --env {name}=VALUE"));
        }
        return is_replaced;
    }
    if !is_free(name, path, findings) {
        return false;
    }
    if name.runs_other_code() && is_replaced {
        return false;
    }
    if name.runs_other_code() && !options.allow_env.contains(name) {
        let why = "the variable is left out, because it makes programs load other code";
        findings.warn(path, format!("{why}: to keep the variable, add --allow-env {name}"));
        return false;
    }
    true
}

fn keep(fields: &mut Map<String, Value>, read: &[&str], path: &str, findings: &mut Findings) {
    fields.retain(|name, _| {
        let is_read = read.contains(&name.as_str());
        if !is_read {
            findings.warn(&format!("{path}.{name}"), NO_MEANING);
        }
        is_read
    });
}

/// The command, with this machine's program instead of the image's. `None` if the program is refused.
pub(super) fn command(command: Vec<String>, path: &str, findings: &mut Findings) -> Option<Vec<String>> {
    let mut command = command;
    let first = command.first_mut()?;
    let program = Path::new(&*first).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(known) = PROGRAMS.into_iter().find(|known| *known == program) else {
        let why =
            format!("\"{first}\" is a program of the image: without a cluster, use one of {}", PROGRAMS.join(", "));
        findings.refuse(&format!("{path}.command"), why);
        return None;
    };
    known.clone_into(first);
    Some(command)
}
