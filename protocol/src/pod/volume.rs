//! What is mounted into pods.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, ObjectName, bad};
use crate::ids::serde_as_string;

/// Something mounted into every pod: `pvc:CLAIM:/path`, `host:/dir:/path` or `empty:/path`, each with `:ro` or without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Volume {
    /// What.
    pub source: VolumeSource,
    /// Where, an absolute path.
    pub path: String,
    /// Whether nothing can be written to it.
    pub read_only: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// A PersistentVolumeClaim of the job's namespace.
    Claim(ObjectName),
    /// A folder of the node, by its absolute path.
    Host(String),
    /// A folder of each pod's own, which goes with it.
    Empty,
}

const VOLUME_FORM: &str =
    "write pvc:CLAIM:/path, host:/dir:/path or empty:/path, with :ro at the end for reading alone";

impl FromStr for Volume {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || bad(text, "volume", VOLUME_FORM);
        let (rest, read_only) = match text.strip_suffix(":ro") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let parts: Vec<&str> = rest.split(':').collect();
        let (source, path) = match parts.as_slice() {
            ["pvc", claim, path] => (VolumeSource::Claim(claim.parse().map_err(|_| bad())?), *path),
            ["host", dir, path] if is_absolute(dir) => (VolumeSource::Host((*dir).to_owned()), *path),
            ["empty", path] => (VolumeSource::Empty, *path),
            _ => return Err(bad()),
        };
        // The agent lies in /muster; a mount over it, or over everything, would hide it.
        let is_free = is_absolute(path) && path != "/" && path != "/muster" && !path.starts_with("/muster/");
        if is_free { Ok(Self { source, path: path.to_owned(), read_only }) } else { Err(bad()) }
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            VolumeSource::Claim(claim) => write!(f, "pvc:{claim}:")?,
            VolumeSource::Host(dir) => write!(f, "host:{dir}:")?,
            VolumeSource::Empty => f.write_str("empty:")?,
        }
        f.write_str(&self.path)?;
        f.write_str(if self.read_only { ":ro" } else { "" })
    }
}

serde_as_string!(Volume);

fn is_absolute(path: &str) -> bool {
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path == "/" || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain))
}
