//! Reads the pod file and the environment file of a training for tf-spawner.

use std::path::Path;

use protocol::env::EnvName;
use serde_json::{Value, json};

use crate::ending::error::Error;
use crate::request::{not_expanded, tfjob};

/// The volume with which tf-spawner brings the script. Muster brings the script without a volume.
const SCRIPT_VOLUME: &str = "script";

/// The name of the container if there is no pod file.
const CONTAINER: &str = "tensorflow";

/// The contents of a pod file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodFile {
    /// The name of the first container, in which the training runs.
    pub(crate) container: String,
    /// The image of that container, if the pod file names one.
    pub(crate) image: Option<String>,
    /// The command and arguments of that container. If empty, the container runs the script.
    pub(crate) command: Vec<String>,
    /// The pod, without the volume of the script.
    pub(crate) template: Value,
}

impl PodFile {
    /// The pod if the user gives no pod file. The default file of tf-spawner requests the same resources.
    pub(super) fn usual() -> Self {
        let resources = json!({ "requests": { "memory": "1Gi", "cpu": "1000m" } });
        let template = json!({ "spec": { "containers": [{ "name": CONTAINER, "resources": resources }] } });
        Self { container: CONTAINER.to_owned(), image: None, command: vec![], template }
    }
}

/// Reads a pod file: a Pod of Kubernetes, whose first container runs the script.
pub(crate) fn pod_file(text: &str, path: &Path) -> Result<PodFile, Error> {
    let bad = |why: &str| Error::input(format!("{}: {why}", path.display()));
    let origin = path.display().to_string();
    let documents = tfjob::split(text, &origin, Path::new("")).map_err(|error| bad(&error.to_string()))?;
    let [document] = documents.as_slice() else {
        return Err(bad(&format!("it has {} documents; a pod file has one", documents.len())));
    };
    let pod = &document.object;
    if pod.get("kind").is_some_and(|kind| kind != "Pod") {
        return Err(bad("its kind is not Pod"));
    }
    let mut spec = pod.get("spec").cloned().ok_or_else(|| bad("spec is missing"))?;
    without_script_volume(&mut spec);
    let first = spec.pointer("/containers/0").ok_or_else(|| bad("spec.containers has no container"))?;
    let text = |name: &str| first.get(name).and_then(Value::as_str).map(str::to_owned);
    let container = text("name").ok_or_else(|| bad("spec.containers[0].name is missing"))?;
    let image = text("image");
    let mut command = vec![];
    for list in ["command", "args"] {
        let words: Option<Vec<String>> = serde_json::from_value(first.get(list).cloned().unwrap_or_default())
            .map_err(|_| bad(&format!("spec.containers[0].{list} must be a list of strings")))?;
        command.extend(words.unwrap_or_default());
    }
    let metadata = pod.get("metadata").cloned().unwrap_or_default();
    let template = json!({ "metadata": without_name(metadata), "spec": spec });
    Ok(PodFile { container, image, command, template })
}

/// Removes the name, because pods are named after their job.
fn without_name(mut metadata: Value) -> Value {
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("name");
    }
    metadata
}

fn without_script_volume(spec: &mut Value) {
    fn drop_named(list: Option<&mut Value>) {
        if let Some(list) = list.and_then(Value::as_array_mut) {
            list.retain(|item| item.get("name").is_none_or(|name| name != SCRIPT_VOLUME));
        }
    }
    drop_named(spec.get_mut("volumes"));
    for kind in ["containers", "initContainers"] {
        for container in spec.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten() {
            drop_named(container.get_mut("volumeMounts"));
        }
    }
}

/// Reads an environment file. Strips each line, and splits it at the first `=`. Skips empty lines and comments.
pub(crate) fn environment(text: &str, path: &Path) -> Result<Vec<(EnvName, String)>, Error> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(place, line)| {
            let bad = |why: String| Error::input(format!("{}, line {}: {why}", path.display(), place + 1));
            let (name, value) = line.split_once('=').ok_or_else(|| bad("not of the form NAME=VALUE".to_owned()))?;
            let name: EnvName = name.parse().map_err(|error: protocol::env::EnvError| bad(error.to_string()))?;
            name.check_value(value).map_err(|error| bad(error.to_string()))?;
            Ok((name, not_expanded(value.to_owned())))
        })
        .collect()
}
