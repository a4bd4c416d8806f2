//! Paths of files in a job's code. A parsed path stays inside the job's folder, on every common file system.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::OWN_FOLDER;
use crate::as_text::checked_text;

/// Default name of the training script.
pub const SCRIPT: &str = "exec.py";
/// Maximum bytes of a path.
const PATH_BYTES_MAX: usize = 1024;
/// Maximum bytes of a part, the limit of Linux's file systems.
const PART_BYTES_MAX: usize = 255;

/// A relative path with `/` between its parts. No part is empty, `.` or `..`, and no character is a control character
/// or a backslash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CodePath(String);

/// The text is not a [`CodePath`] or [`ScriptPath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid path \"{path}\": {wrong}")]
pub struct BadCodePath {
    /// The first characters of the text.
    path: String,
    wrong: &'static str,
}

impl CodePath {
    /// The path in lower case. Paths with equal results name the same file where case does not matter.
    pub(super) fn folded(&self) -> String {
        self.0.to_lowercase()
    }
}

impl FromStr for CodePath {
    type Err = BadCodePath;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = || text.split('/');
        let wrong = if text.is_empty() {
            "it is empty"
        } else if text.len() > PATH_BYTES_MAX {
            "it is longer than 1024 bytes"
        } else if text.chars().any(char::is_control) {
            "it contains a control character"
        } else if text.contains('\\') {
            "it contains a backslash"
        } else if text.starts_with('/') {
            "it is absolute; use a path in the job's folder"
        } else if parts().any(|part| matches!(part, "" | "." | "..")) {
            "it has a part that is empty, '.' or '..'"
        } else if parts().any(|part| part.len() > PART_BYTES_MAX) {
            "it has a part longer than 255 bytes"
        } else if parts().next().is_some_and(|first| first.to_lowercase() == OWN_FOLDER) {
            "Muster itself uses the folder .muster"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(bad(text, wrong))
    }
}

/// The error. Its text is one line, whatever the path contains.
fn bad(text: &str, wrong: &'static str) -> BadCodePath {
    BadCodePath { path: text.chars().take(80).flat_map(char::escape_debug).collect(), wrong }
}

checked_text!(CodePath);

/// The script that `python` runs: a path in the job's folder that does not begin with `-`, or an absolute path. A job in
/// place may have its script outside the folder in which it runs. The default is exec.py.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ScriptPath(String);

impl Default for ScriptPath {
    fn default() -> Self {
        Self(SCRIPT.to_owned())
    }
}

impl FromStr for ScriptPath {
    type Err = BadCodePath;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix('/').unwrap_or(text).parse::<CodePath>() {
            Ok(_) if text.starts_with('-') => Err(bad(text, "Python would read it as an option")),
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(error),
        }
    }
}

checked_text!(ScriptPath);
