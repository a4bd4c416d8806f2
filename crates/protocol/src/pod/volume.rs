//! Volumes of pods.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, ObjectName, bad};
use crate::as_text::serde_as_string;

/// A volume for every pod: `pvc:CLAIM:/path`, `host:/dir:/path` or `empty:/path`. A final `:ro` mounts it read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Volume {
    /// What is mounted.
    pub source: VolumeSource,
    /// Absolute path in the pod.
    pub path: String,
    /// Whether the volume is mounted read-only.
    pub read_only: bool,
}

/// The source of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// A PersistentVolumeClaim in the job's namespace.
    Claim(ObjectName),
    /// A folder on the node, by absolute path.
    Host(String),
    /// An empty folder for each pod, deleted with the pod.
    Empty,
}

const VOLUME_FORM: &str =
    "write pvc:CLAIM:/path, host:/dir:/path or empty:/path, with :ro at the end to mount it read-only";

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
        // A mount at / or in /muster would hide the agent, which is installed in /muster.
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
