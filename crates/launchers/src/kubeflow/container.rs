//! The container that trains: its program, its port, its variables and its user.

use std::collections::BTreeMap;

use crate::template::{Findings, not_list, not_text};
use protocol::env::{EnvName, MUSTER_PREFIX};
use protocol::image::Entrypoint;
use protocol::routes::AGENT_PORT;
use protocol::tfjob::{TFJOB_CONTAINER, TfJobRequest};
use serde_json::Value;

/// The name of the port of TensorFlow's server.
const PORT_NAME: &str = "tfjob-port";
/// The port of TensorFlow's server in a TFJob that names no port.
const PORT: u16 = 2222;

/// The user of a container's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum User {
    /// The template names a user.
    Named,
    /// The image names a numeric user other than root.
    OfImage,
    /// The image's user is not known, is root, or has a name.
    Unknown,
}

/// The index of the container that trains.
pub(super) fn position(template: &Value) -> Option<usize> {
    let containers = template.pointer("/spec/containers")?.as_array()?;
    containers.iter().position(|one| one.get("name").and_then(Value::as_str) == Some(TFJOB_CONTAINER))
}

/// The user of the container's processes. `known` has the entrypoints of images, by the name of the image.
pub(super) fn user(pod: &Value, container: &Value, known: &BTreeMap<String, Entrypoint>) -> User {
    let is_named = |context: &Value| !context["securityContext"]["runAsUser"].is_null();
    if is_named(container) || is_named(pod) {
        return User::Named;
    }
    let of_image = container["image"].as_str().and_then(|image| known.get(image)).map(|known| known.user.as_str());
    let uid = of_image.and_then(|user| user.split(':').next()?.parse::<u32>().ok());
    if uid.is_some_and(|uid| uid != 0) { User::OfImage } else { User::Unknown }
}

/// The program and its arguments. `name` is the type of the replicas. `None` if a field is refused.
pub(super) fn command(
    container: &Value,
    (path, name): (&str, &str),
    request: &TfJobRequest,
    findings: &mut Findings,
) -> Option<Vec<String>> {
    let command = words(&container["command"], &format!("{path}.command"), findings)?;
    let args = words(&container["args"], &format!("{path}.args"), findings)?;
    if !command.is_empty() {
        return Some([command, args].concat());
    }
    let known = container["image"].as_str().and_then(|image| request.entrypoints.get(image));
    let of_image = known.map(|image| [&image.command[..], if args.is_empty() { &image.args } else { &args }].concat());
    let found = of_image.filter(|command| !command.is_empty());
    if found.is_none() {
        let why = match known {
            Some(_) => "the image has neither ENTRYPOINT nor CMD",
            None => "the program of the image is unknown",
        };
        let todo = format!("add the field command to containers[{TFJOB_CONTAINER}] of {name}");
        findings.refuse(&format!("{path}.command"), format!("{why}: {todo}"));
    }
    found
}

/// Reads a list of texts. An absent list is empty. `None` if the list is refused.
fn words(list: &Value, path: &str, findings: &mut Findings) -> Option<Vec<String>> {
    let items = match list {
        Value::Null => &[][..],
        Value::Array(items) => items,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            findings.refuse(path, not_list(list));
            return None;
        }
    };
    for (place, item) in items.iter().enumerate().filter(|(_, item)| !item.is_string()) {
        findings.refuse(&format!("{path}[{place}]"), not_text(item));
    }
    items.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// The port of TensorFlow's server.
pub(super) fn port(container: &Value, path: &str, findings: &mut Findings) -> u16 {
    let ports = container["ports"].as_array().into_iter().flatten();
    let Some(named) = ports.filter(|port| port["name"] == PORT_NAME).map(|port| &port["containerPort"]).next() else {
        return PORT;
    };
    let why = match named.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0) {
        Some(AGENT_PORT) => format!("{AGENT_PORT} is the port of Muster's agent: use another port"),
        Some(port) => return port,
        None => format!("{named} is not a port from 1 to 65535"),
    };
    findings.refuse(&format!("{path}.ports"), why);
    PORT
}

/// The variables of a container, each with its path and its name. The name is `None` if it is invalid. Refuses names and
/// values that are no strings, as Kubernetes does.
pub(super) fn variables<'a>(
    container: &'a Value,
    path: &str,
    findings: &mut Findings,
) -> Vec<(String, Option<EnvName>, &'a Value)> {
    let list = match &container["env"] {
        Value::Null => &[][..],
        Value::Array(list) => list,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            findings.refuse(&format!("{path}.env"), "it must be a list of objects with name and value");
            &[]
        }
    };
    list.iter()
        .enumerate()
        .filter_map(|(index, variable)| {
            let Some(name) = variable["name"].as_str().filter(|name| !name.is_empty()) else {
                findings.refuse(&format!("{path}.env[{index}].name"), "a variable needs a name, which is a string");
                return None;
            };
            let path = format!("{path}.env[{name}]");
            let value = &variable["value"];
            if !value.is_null() && !value.is_string() {
                findings.refuse(&format!("{path}.value"), not_text(value));
            }
            Some((path, name.parse().ok(), variable))
        })
        .collect()
}

/// Refuses variables with Muster's prefix. Warns of variables that have no effect, or an unexpected effect.
pub(super) fn check_variables(container: &Value, path: &str, findings: &mut Findings) {
    for (path, name, _) in variables(container, path, findings) {
        let Some(name) = name else { continue };
        if is_free(&name, &path, findings) && name.runs_other_code() {
            findings.warn(&path, "it makes every program of the container load or run other code");
        }
    }
}

/// Whether a container may set this variable. Otherwise, refuses the variable or warns of it.
pub(super) fn is_free(name: &EnvName, path: &str, findings: &mut Findings) -> bool {
    if name.as_str().starts_with(MUSTER_PREFIX) {
        findings.refuse(path, format!("names that begin with {MUSTER_PREFIX} belong to Muster: use another name"));
    } else if name.is_reserved() {
        findings.warn(path, "it has no effect: Muster sets this variable");
    }
    !name.is_reserved()
}
