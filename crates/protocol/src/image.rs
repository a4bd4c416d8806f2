//! Image names, by the grammar of the distribution project (`distribution/reference`, reference.go), and the program of an
//! image. A parsed name contains no spaces or line breaks, so it is safe in a Dockerfile or on a command line.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::as_text::serde_as_string;
use crate::text::parted;

/// Maximum characters of a repository's name, host included.
const NAME_MAX: usize = 255;
/// Maximum characters of a tag.
const TAG_MAX: usize = 128;
/// The tag of an image whose name contains no tag.
const DEFAULT_TAG: &str = "latest";

/// The host of Docker Hub's registry.
pub const HUB: &str = "registry-1.docker.io";
/// The names of Docker Hub, the registry of an image whose name has no host.
pub const HUB_NAMES: [&str; 3] = ["docker.io", "index.docker.io", HUB];

/// An image name: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageRef {
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// The text is not a valid [`ImageRef`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not the name of an image: write [HOST[:PORT]/]NAME[:TAG], in lower case, for example allreduce:1")]
pub struct BadImageRef(String);

/// The program that an image runs by default, and its user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Entrypoint {
    /// The image's ENTRYPOINT.
    pub command: Vec<String>,
    /// The image's CMD.
    pub args: Vec<String>,
    /// The image's USER, empty if the image names no user.
    pub user: String,
}

impl ImageRef {
    /// The host and path, without tag and digest.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The host of the registry, with its port if the name has one. `None` if the registry is Docker Hub.
    pub fn host(&self) -> Option<&str> {
        split(&self.repository).0.filter(|host| !HUB_NAMES.contains(host))
    }

    /// The path without the host.
    pub fn path(&self) -> &str {
        split(&self.repository).1
    }

    /// The digest, if the name has one.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// The tag, if the name has one.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The name of the pod image, which adds the agent to this image: `allreduce:1` → `allreduce_pod:1`. If this name
    /// has a digest and no tag, the tag of the pod image is the first 12 hexadecimal digits of the digest.
    pub fn of_pods(&self) -> Self {
        let of_digest = || self.digest.as_deref()?.split_once(':').map(|(_, hex)| hex.chars().take(12).collect());
        let tag = self.tag.clone().or_else(of_digest).unwrap_or_else(|| DEFAULT_TAG.to_owned());
        Self { repository: format!("{}_pod", self.repository), tag: Some(tag), digest: None }
    }

    /// The same path and tag in another registry. `None` when the result is not a valid name.
    pub fn below(&self, registry: &str) -> Option<Self> {
        let (path, tag) = (self.path(), self.tag.as_deref().unwrap_or(DEFAULT_TAG));
        format!("{}/{path}:{tag}", registry.trim_end_matches('/')).parse().ok()
    }

    /// The same repository with a digest and no tag. `None` if `digest` is invalid.
    pub fn at(&self, digest: &str) -> Option<Self> {
        let digest = Some(digest.to_owned()).filter(|digest| is_digest(digest));
        digest.map(|digest| Self { repository: self.repository.clone(), tag: None, digest: Some(digest) })
    }
}

impl FromStr for ImageRef {
    type Err = BadImageRef;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadImageRef(text.chars().take(80).collect());
        let (rest, digest) = parted(text, '@');
        let (repository, tag) = match rest.rsplit_once(':') {
            // A colon before a slash separates the port.
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            Some(_) | None => (rest, None),
        };
        let is_valid = is_repository(repository) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
        if !is_valid {
            return Err(bad());
        }
        Ok(Self { repository: repository.to_owned(), tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) })
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

serde_as_string!(ImageRef);

fn is_repository(text: &str) -> bool {
    // Docker reads 64 hexadecimal digits as an image id.
    let is_id = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    text.len() <= NAME_MAX && !is_id && split(text).1.split('/').all(is_path_component)
}

/// The host, if the repository has one, and the path.
fn split(repository: &str) -> (Option<&str>, &str) {
    match repository.split_once('/') {
        Some((first, path)) if is_host(first) => (Some(first), path),
        Some(_) | None => (None, repository),
    }
}

/// Whether the text before the first slash is a host. Otherwise, the text is a part of a path on the default registry.
fn is_host(text: &str) -> bool {
    let port_ok = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        let is_ipv6 = !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
        return is_ipv6 && (rest.is_empty() || rest.strip_prefix(':').is_some_and(port_ok));
    }
    let (name, port) = parted(text, ':');
    let is_marked = name.contains('.') || name == "localhost" || name.bytes().any(|b| b.is_ascii_uppercase());
    let looks_like_one = port.is_some() || is_marked;
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    looks_like_one && port.is_none_or(port_ok) && name.split('.').all(label)
}

/// Lower-case letters and digits, with `.`, `_`, `__` or any number of `-` between them.
fn is_path_component(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let separators: Vec<&str> =
        text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
    let separator_ok = |part: &&str| matches!(*part, "." | "_" | "__") || part.bytes().all(|b| b == b'-');
    let edges_ok = text.bytes().next().is_some_and(is_word) && text.bytes().last().is_some_and(is_word);
    edges_ok && separators.iter().all(separator_ok)
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let first_ok = text.bytes().next().is_some_and(is_word);
    first_ok && text.len() <= TAG_MAX && text.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, hex)) = text.split_once(':') else { return false };
    let algorithm_ok = !algorithm.is_empty() && algorithm.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    algorithm_ok && (32..=128).contains(&hex.len()) && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
