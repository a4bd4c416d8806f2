//! Where a registry has an image: the registry's host, and the image's path and tag (pure).

use std::fmt;
use std::net::IpAddr;

use protocol::image::{HUB, ImageRef};

use super::LookUpError;
use super::digest::Digest;

const DEFAULT_TAG: &str = "latest";

/// Which image of a path is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TagOrDigest {
    Tag(String),
    Digest(Digest),
}

impl fmt::Display for TagOrDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

/// Where a registry has an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// The host, with its port if the image's name has one.
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) place: TagOrDigest,
}

impl Address {
    /// # Errors
    /// The digest in the image's name is no SHA-256.
    pub(crate) fn of(image: &ImageRef) -> Result<Self, LookUpError> {
        let place = match (image.digest(), image.tag()) {
            (Some(digest), _) => TagOrDigest::Digest(Digest::read(digest)?),
            (None, tag) => TagOrDigest::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        };
        Ok(Self { host: image.host().unwrap_or(HUB).to_owned(), path: path(image), place })
    }
}

/// The path of an image in its registry.
pub(crate) fn path(image: &ImageRef) -> String {
    match (image.host(), image.path()) {
        (None, path) if !path.contains('/') => format!("library/{path}"),
        (_, path) => path.to_owned(),
    }
}

/// The registries that are asked by plain HTTP.
#[derive(Debug, Clone)]
pub struct PlainHosts {
    listed: Vec<String>,
    has_loopback: bool,
}

impl PlainHosts {
    /// These hosts, each with a port if the names of its images have one, and the loopback interface.
    pub fn with_loopback(listed: Vec<String>) -> Self {
        Self { listed, has_loopback: true }
    }

    /// Only these hosts. In a pod, the loopback interface leads to other containers of the pod, and not to a registry.
    pub fn only(listed: Vec<String>) -> Self {
        Self { listed, has_loopback: false }
    }

    /// Whether requests to this host use plain HTTP. The host may have a port.
    pub(crate) fn has(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((address, _)) => address,
            None => host.split_once(':').map_or(host, |(name, _)| name),
        };
        let is_loopback = name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let without_default_port = |host: &str| host.strip_suffix(":80").unwrap_or(host).to_owned();
        let mut listed = self.listed.iter().map(|known| without_default_port(known));
        self.has_loopback && is_loopback || listed.any(|known| known == without_default_port(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_an_image_has_the_host_of_its_name_or_of_docker_hub() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (image, host, path, place) in [
            ("python", HUB, "library/python", "latest"),
            ("docker.io/python:3", HUB, "library/python", "3"),
            ("me/mnist:1", HUB, "me/mnist", "1"),
            ("gcr.io/team/mnist", "gcr.io", "team/mnist", "latest"),
            ("localhost:5000/mnist:2", "localhost:5000", "mnist", "2"),
            (&format!("[::1]:5000/a/b:1@{digest}"), "[::1]:5000", "a/b", digest.as_str()),
        ] {
            let address = Address::of(&image.parse().unwrap()).unwrap();
            let found = (address.host.as_str(), address.path.as_str(), address.place.to_string());
            assert_eq!(found, (host, path, place.to_owned()));
        }
        let other = format!("python@sha512:{}", "0".repeat(128)).parse().unwrap();
        assert!(matches!(Address::of(&other), Err(LookUpError::Unusable(reason)) if reason.ends_with("use sha256")));
    }

    #[test]
    fn only_loopback_and_the_named_hosts_use_plain_http() {
        let named = ["registry.example.com:5000".to_owned(), "r.example:80".to_owned()];
        let (near, listed) = (PlainHosts::with_loopback(named.to_vec()), PlainHosts::only(named.to_vec()));
        for host in ["localhost", "localhost:5000", "127.0.0.2:1", "[::1]:5000"] {
            assert!(near.has(host) && !listed.has(host), "{host}");
        }
        for host in ["registry.example.com:5000", "r.example"] {
            assert!(near.has(host) && listed.has(host), "{host}");
        }
        for host in ["registry.example.com", "localhost.example.com", "10.0.0.1:5000", "[2001:db8::1]:5000"] {
            assert!(!near.has(host), "{host}");
        }
    }
}
