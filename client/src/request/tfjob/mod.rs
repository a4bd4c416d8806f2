//! Finds and splits the files with TFJobs. Adapts the TFJobs if there is no cluster, or if the job brings its code. The
//! master interprets the TFJobs.

mod files;
mod scripts;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use protocol::code::ScriptPath;
use protocol::ids::JobName;
use protocol::image::Entrypoint;
use protocol::tfjob::TFJOB_CONTAINER;
use serde_json::{Value, json};

pub(crate) use self::files::{read, split};
use crate::output::command_line::command;

/// Why there is no TFJob to send.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TfJobError {
    /// The file or folder cannot be read.
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is not YAML.
    #[error("{origin} is not valid YAML: {reason}")]
    NotYaml { origin: String, reason: String },
    /// No file contains an object.
    #[error("there is no TFJob in {0}")]
    Nothing(String),
    /// The script is a path in the image, and the folders on this machine have no file with the same name.
    #[error("{origin}: {script} is a path in the image, and there is no {} in {}", file.display(), listed(folders))]
    NoScript { origin: String, script: String, file: PathBuf, folders: Vec<PathBuf> },
    /// No container runs a script that is in the folder of --code.
    #[error("{origin}: no container runs a script that is in {}", folder.display())]
    NotInCode { origin: String, folder: PathBuf },
    /// --code names no folder.
    #[error("--code {} is not a folder", .0.display())]
    NoFolder(PathBuf),
    /// Several TFJobs are given, but a local master runs one, and `--follow` follows one.
    #[error("{0} TFJobs are given, but a local master runs only one, and --follow follows only one")]
    Several(usize),
    /// The same TFJob has ended before.
    #[error("tfjob {0} has already ended")]
    Ended(JobName),
    /// The master refused a document.
    #[error("{origin}: {detail}")]
    Refused { origin: String, detail: String },
}

fn listed(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" or ")
}

impl TfJobError {
    /// The next step for the user.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoScript { .. } => {
                "put the script beside the TFJob's file, or name the script's folder with --code DIR"
            }
            Self::NotInCode { .. } => "give --code the folder of a script that a container runs, or leave out --code",
            Self::Ended(name) => {
                let (delete, logs) = (command(&format!("delete {name}")), command(&format!("logs {name}")));
                return Some(format!("to run it again, first delete it: {delete}; to see its output: {logs}"));
            }
            Self::Several(_) => "give one TFJob; to start several, give --master URL and no --follow",
            Self::Read { .. } | Self::NotYaml { .. } | Self::Nothing(_) | Self::NoFolder(_) | Self::Refused { .. } => {
                return None;
            }
        };
        Some(hint.to_owned())
    }
}

/// One object of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    /// The file and, if it has several objects, the object's number.
    pub(crate) origin: String,
    /// The folder of the file.
    pub(crate) folder: PathBuf,
    pub(crate) object: Value,
}

impl Document {
    /// The name of the object.
    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Completes the name of an object that has only `generateName`.
    pub(crate) fn name_it(&mut self, suffix: &str) {
        let begin = self.object["metadata"]["generateName"].as_str().map(str::to_owned);
        if let Some(begin) = begin.filter(|_| self.name().is_empty()) {
            self.object["metadata"]["name"] = format!("{begin}{suffix}").into();
        }
    }

    /// The containers that train. In v1alpha1, the replicas are a list.
    fn containers(&mut self) -> impl Iterator<Item = &mut Value> {
        let spec = self.object.get_mut("spec").and_then(Value::as_object_mut).into_iter().flatten();
        let types = spec.filter(|(name, _)| ["tfReplicaSpecs", "replicaSpecs"].contains(&name.as_str()));
        let replicas = types.flat_map(|(_, types)| match types {
            Value::Object(types) => types.values_mut().collect(),
            Value::Array(types) => types.iter_mut().collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => vec![],
        });
        let lists = replicas.filter_map(|of_type| of_type.pointer_mut("/template/spec/containers")?.as_array_mut());
        lists.flatten().filter(|container| container["name"] == TFJOB_CONTAINER)
    }

    /// The images of containers without a command. These containers run the program of their image.
    pub(crate) fn images_without_command(&mut self) -> BTreeSet<String> {
        self.containers()
            .filter(|container| lacks(container, "command"))
            .filter_map(|container| Some(container["image"].as_str()?.to_owned()))
            .collect()
    }

    /// Prepares the object for a master whose replicas are processes. Gives containers without a command the program of
    /// their image. Replaces the path of a script in an image by a file with the same name in these folders.
    pub(crate) fn without_images(
        &mut self,
        entrypoints: &BTreeMap<String, Entrypoint>,
        folders: &[PathBuf],
    ) -> Result<(), TfJobError> {
        let origin = self.origin.clone();
        for container in self.containers() {
            complete(container, entrypoints);
            scripts::find(container, &origin, folders)?;
        }
        Ok(())
    }

    /// Prepares the object for a master that brings the code in this folder to its pods. Returns the first script in
    /// this folder that a container runs.
    pub(crate) fn with_code(
        &mut self,
        entrypoints: &BTreeMap<String, Entrypoint>,
        folder: &Path,
    ) -> Result<ScriptPath, TfJobError> {
        let mut scripts = vec![];
        for container in self.containers() {
            complete(container, entrypoints);
            scripts.extend(scripts::bring(container, folder));
        }
        let missing = || TfJobError::NotInCode { origin: self.origin.clone(), folder: folder.to_owned() };
        scripts.into_iter().next().ok_or_else(missing)
    }
}

/// Adds the program of the image to a container without a command.
fn complete(container: &mut Value, entrypoints: &BTreeMap<String, Entrypoint>) {
    let known = container["image"].as_str().and_then(|image| entrypoints.get(image));
    if let Some(Entrypoint { command, args, .. }) = known.filter(|_| lacks(container, "command")) {
        container["command"] = json!(command);
        if lacks(container, "args") {
            container["args"] = json!(args);
        }
    }
}

/// Whether a list of a container is absent or empty. Kubernetes then uses the image's list.
fn lacks(container: &Value, list: &str) -> bool {
    container[list].is_null() || container[list].as_array().is_some_and(Vec::is_empty)
}

/// The folder that --code names.
pub(crate) fn code_folder(code: &Path) -> Result<PathBuf, TfJobError> {
    let folder = code.canonicalize().ok().filter(|folder| folder.is_dir());
    folder.ok_or_else(|| TfJobError::NoFolder(code.to_owned()))
}

#[cfg(test)]
#[path = "tfjob_tests.rs"]
mod tests;
