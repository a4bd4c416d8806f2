//! Reads files, folders and stdin, and splits them into objects.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use serde_json::Value;

use super::FileObject;
use crate::ending::error::Error;
use crate::output::command_line::command;
use crate::request::unreadable;

/// The path that means stdin.
const STDIN: &str = "-";
/// The extensions of the files that are read from a folder. kubectl reads the same files.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// All objects of these files, in their order. `here` is the current folder.
pub(crate) fn read(files: &[PathBuf], here: &Path) -> Result<Vec<FileObject>, Error> {
    let mut documents = vec![];
    for path in files {
        if path.as_os_str() == STDIN {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(unreadable(path))?;
            documents.extend(split(&text, "stdin", here)?);
            continue;
        }
        if let Some(url) = path.to_str().filter(|path| path.starts_with("http://") || path.starts_with("https://")) {
            let hint = format!("curl -fsSL {url} | {}", command("apply -f -"));
            return Err(Error::input(format!("{url} is a URL: `client apply` reads only files")).hint(hint));
        }
        for file in files_at(path)? {
            let text = fs::read_to_string(&file).map_err(unreadable(&file))?;
            let folder =
                file.canonicalize().map_err(unreadable(&file))?.parent().map(Path::to_owned).unwrap_or_default();
            documents.extend(split(&text, &file.display().to_string(), &folder)?);
        }
    }
    if documents.is_empty() {
        return Err(Error::input(format!("there is no TFJob in {}", listed(files))));
    }
    Ok(documents)
}

/// The names of these files.
pub(super) fn listed(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The file at this path. If the path is a folder, the files in that folder, in the order of their names.
fn files_at(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries: Result<Vec<_>, _> = fs::read_dir(path).map_err(unreadable(path))?.collect();
    let paths = entries.map_err(unreadable(path))?.into_iter().map(|entry| entry.path());
    let is_read = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        path.is_file() && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
    };
    let mut paths: Vec<PathBuf> = paths.filter(is_read).collect();
    paths.sort();
    Ok(paths)
}

/// The objects of a YAML text. The library refuses duplicate keys, and limits the size of expanded aliases.
pub(crate) fn split(text: &str, origin: &str, folder: &Path) -> Result<Vec<FileObject>, Error> {
    // Kubernetes reads YAML 1.1, in which 0440 is octal.
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    let values: Vec<Value> = serde_saphyr::from_multiple_with_options(&as_yaml(text), options)
        .map_err(|error| Error::input(format!("{origin} is not valid YAML: {}", reason(&error))))?;
    let objects: Vec<Value> = values.into_iter().flat_map(items).filter(|object| !object.is_null()).collect();
    let is_only = objects.len() == 1;
    let document = |(place, object): (usize, Value)| FileObject {
        origin: if is_only { origin.to_owned() } else { format!("{origin}, object {}", place + 1) },
        folder: folder.to_owned(),
        object,
    };
    Ok(objects.into_iter().enumerate().map(document).collect())
}

/// The text with a separator between JSON documents that follow each other without one, as from `jq -c '.items[]'`.
fn as_yaml(text: &str) -> Cow<'_, str> {
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut ends = vec![0];
    while let Some(document) = documents.next() {
        match document {
            Ok(_) => ends.push(documents.byte_offset()),
            Err(_) => return text.into(),
        }
    }
    let parts: Vec<&str> = ends.windows(2).map(|part| &text[part[0]..part[1]]).collect();
    if parts.len() > 1 { parts.join("\n---\n").into() } else { text.into() }
}

/// The library's error text, without its advice for programmers.
fn reason(error: &serde_saphyr::Error) -> String {
    error.to_string().replace(", set DuplicateKeyPolicy in Options if acceptable", "")
}

/// The items of a list, such as the output of `kubectl get -o yaml`. Any other object is returned unchanged.
fn items(object: Value) -> Vec<Value> {
    let is_list = object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match object.get("items") {
        Some(Value::Array(items)) if is_list => items.clone(),
        Some(_) | None => vec![object],
    }
}
