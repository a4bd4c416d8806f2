//! Makes the shell statements that `client env` prints for `eval`. The statements change the shell's environment, or
//! undo an earlier change. This file is pure; `cluster.rs` asks kubectl and minikube.

mod cluster;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use self::cluster::set_up;

/// Variables by name.
pub(crate) type ShellVariables = BTreeMap<String, String>;

/// The variable with the values from before `client env`, so that they can be restored.
const MEMORY: &str = "MUSTER_ENV_BEFORE";
const PATH: &str = "PATH";

/// What `client env` has changed in the environment, with the old values.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ShellMemory {
    /// The variables that were changed, each with its old value. `null` if a variable was not set.
    variables: BTreeMap<String, Option<String>>,
    /// The folder added to PATH.
    folder: Option<String>,
}

/// The environment without the changes of an earlier `client env`.
pub(crate) fn restored(now: &ShellVariables) -> ShellVariables {
    let mut before = now.clone();
    let Some(memory) = before.remove(MEMORY) else { return before };
    // Ignores a memory that cannot be read: `client env` did not write it.
    let ShellMemory { variables, folder } = serde_json::from_str(&memory).unwrap_or_default();
    for (name, value) in variables {
        match value {
            Some(value) => before.insert(name, value),
            None => before.remove(&name),
        };
    }
    // Removes only this folder, because the user may have added other entries to PATH.
    if let (Some(folder), Some(path)) = (folder, before.get_mut(PATH)) {
        *path = without_first(path, &folder);
    }
    before
}

/// Adds the memory of `before` to `after`. Also adds `folder` to the PATH of `after`, unless the PATH already has this
/// folder. A folder with a colon in its path is not added, because colons separate the entries of PATH.
pub(crate) fn remember(before: &ShellVariables, mut after: ShellVariables, folder: Option<&str>) -> ShellVariables {
    let variables = changed(before, &after).into_iter().map(|name| (name.clone(), before.get(name).cloned())).collect();
    let path = after.get(PATH).cloned().unwrap_or_default();
    let added = folder.filter(|folder| !folder.contains(':') && path.split(':').all(|entry| entry != *folder));
    if let Some(folder) = added {
        let path = if path.is_empty() { folder.to_owned() } else { format!("{folder}:{path}") };
        after.insert(PATH.to_owned(), path);
    }
    let memory = ShellMemory { variables, folder: added.map(str::to_owned) };
    if memory != ShellMemory::default() {
        let memory = serde_json::to_string(&memory).expect("text and maps of text are JSON");
        after.insert(MEMORY.to_owned(), memory);
    }
    after
}

/// The statements that change `now` to `wanted`, for any shell of the Bourne family.
pub(crate) fn statements(now: &ShellVariables, wanted: &ShellVariables) -> String {
    let statement = |name: &String| match wanted.get(name) {
        Some(value) => format!("export {name}={}\n", quoted(value)),
        None => format!("unset {name}\n"),
    };
    changed(now, wanted).into_iter().filter(|name| is_name(name)).map(statement).collect()
}

fn changed<'a>(from: &'a ShellVariables, to: &'a ShellVariables) -> Vec<&'a String> {
    let gone = from.keys().filter(|name| !to.contains_key(*name));
    let set = to.iter().filter(|(name, value)| from.get(*name) != Some(value)).map(|(name, _)| name);
    gone.chain(set).collect()
}

fn without_first(path: &str, folder: &str) -> String {
    let mut entries: Vec<&str> = path.split(':').collect();
    if let Some(place) = entries.iter().position(|entry| *entry == folder) {
        entries.remove(place);
    }
    entries.join(":")
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// Whether a shell accepts the text as a variable's name. Anything else could be a command.
fn is_name(text: &str) -> bool {
    let starts_well = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts_well && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> ShellVariables {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn without_changes_there_are_no_statements() {
        let before = environment(&[("PATH", "/bin:/opt/muster")]);
        let after = remember(&before, before.clone(), Some("/opt/muster"));
        assert_eq!(statements(&before, &after), "");
        assert_eq!(statements(&before, &restored(&before)), "");
    }

    #[test]
    fn values_are_quoted_and_invalid_names_are_left_out() {
        let wanted = environment(&[("A", "it's $HOME;\n`ls`"), ("B;ls", "x"), ("", "x"), ("1", "x")]);
        assert_eq!(statements(&ShellVariables::new(), &wanted), "export A='it'\\''s $HOME;\n`ls`'\n");
    }
}
