//! Finds and splits the files with TFJobs. Adapts the TFJobs if there is no cluster, or if the job brings its code. The
//! master interprets the TFJobs.

mod files;
mod scripts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use protocol::code::ScriptPath;
use protocol::image::Entrypoint;
use protocol::tfjob::{FIRST_TFJOB_KIND, TFJOB_CONTAINER, TFJOB_KIND};
use serde_json::{Value, json};

pub(crate) use self::files::{read, split};
use crate::ending::error::Error;

/// Separates the TFJobs from objects of other kinds, and returns the names of these. An only object stays, because the
/// check of the TFJob refuses its kind.
pub(crate) fn only_tfjobs(
    documents: Vec<FileObject>,
    files: &[PathBuf],
) -> Result<(Vec<FileObject>, Vec<String>), Error> {
    if documents.len() == 1 {
        return Ok((documents, vec![]));
    }
    let (others, tfjobs): (Vec<_>, Vec<_>) = documents.into_iter().partition(|one| one.other_kind().is_some());
    if tfjobs.is_empty() {
        let kinds: BTreeSet<&str> = others.iter().filter_map(FileObject::other_kind).collect();
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Error::input(format!("there is no TFJob in {}, only {kinds}", files::listed(files))));
    }
    let named =
        |other: &FileObject| format!("{} {} ({})", other.other_kind().unwrap_or_default(), other.name(), other.origin);
    let others = others.iter().map(named).collect();
    Ok((tfjobs, others))
}

/// One object of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FileObject {
    /// The file and, if it has several objects, the object's number.
    pub(crate) origin: String,
    /// The folder of the file.
    pub(crate) folder: PathBuf,
    pub(crate) object: Value,
}

impl FileObject {
    /// The name of the object.
    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The kind of an object that is not a TFJob.
    fn other_kind(&self) -> Option<&str> {
        self.object["kind"].as_str().filter(|kind| ![TFJOB_KIND, FIRST_TFJOB_KIND].contains(kind))
    }

    /// Completes the name of an object that has only `generateName`.
    pub(crate) fn name_it(&mut self, suffix: &str) {
        let begin = self.object["metadata"]["generateName"].as_str().map(str::to_owned);
        if self.name().is_empty()
            && let Some(begin) = begin
        {
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
    /// their image. Replaces the path of a script in an image by the file that has most of the path, in the folder `code`
    /// or beside the object's file. Returns sentences about these files.
    pub(crate) fn without_images(
        &mut self,
        entrypoints: &BTreeMap<String, Entrypoint>,
        code: Option<&Path>,
    ) -> Result<Vec<String>, Error> {
        let (origin, beside, mut replaced) = (self.origin.clone(), self.folder.clone(), vec![]);
        for container in self.containers() {
            complete(container, entrypoints);
            replaced.extend(scripts::find(container, &origin, code, &beside)?);
        }
        scripts::told(replaced, &origin)
    }

    /// Prepares the object for a master that brings the code in this folder to its pods. Returns the first script in
    /// this folder that a container runs, and sentences about the scripts of the image that are replaced.
    pub(crate) fn with_code(
        &mut self,
        entrypoints: &BTreeMap<String, Entrypoint>,
        folder: &Path,
    ) -> Result<(ScriptPath, Vec<String>), Error> {
        let mut scripts = vec![];
        for container in self.containers() {
            complete(container, entrypoints);
            scripts.extend(scripts::bring(container, folder));
        }
        let missing = || {
            Error::input(format!("{}: no container runs a script that is in {}", self.origin, folder.display()))
                .hint("give --code the folder of a script that a container runs, or leave out --code")
        };
        let (scripts, replaced): (Vec<_>, Vec<_>) = scripts.into_iter().unzip();
        let script = scripts.into_iter().next().ok_or_else(missing)?;
        Ok((script, scripts::told(replaced.into_iter().flatten().collect(), &self.origin)?))
    }
}

/// Adds the program of the image to a container without a command.
fn complete(container: &mut Value, entrypoints: &BTreeMap<String, Entrypoint>) {
    let known = container["image"].as_str().and_then(|image| entrypoints.get(image));
    if lacks(container, "command")
        && let Some(Entrypoint { command, args, .. }) = known
    {
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
pub(crate) fn code_folder(code: &Path) -> Result<PathBuf, Error> {
    let folder = code.canonicalize().ok().filter(|folder| folder.is_dir());
    folder.ok_or_else(|| Error::input(format!("--code {} is not a folder", code.display())))
}

#[cfg(test)]
#[path = "tfjob_tests.rs"]
mod tests;
