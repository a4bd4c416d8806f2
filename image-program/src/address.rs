//! Where a registry has an image: the registry's host, and the image's path and tag (pure).

use std::net::IpAddr;

use protocol::image::ImageRef;

/// The hosts of Docker Hub in names of images.
const HUB_NAMES: [&str; 2] = ["docker.io", "index.docker.io"];
/// The host of Docker Hub's registry.
const HUB: &str = "registry-1.docker.io";
const DEFAULT_TAG: &str = "latest";

/// Which image of a path is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Tag(String),
    /// The digest, such as `sha256:…`.
    Digest(String),
}

impl Place {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Tag(text) | Self::Digest(text) => text,
        }
    }
}

/// Where a registry has an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// The host, with its port if the image's name has one.
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) reference: Place,
}

impl Address {
    pub(crate) fn of(image: &ImageRef) -> Self {
        let reference = match (image.digest(), image.tag()) {
            (Some(digest), _) => Place::Digest(digest.to_owned()),
            (None, tag) => Place::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        };
        let path = image.path();
        match image.host().filter(|host| !HUB_NAMES.contains(host)) {
            Some(host) => Self { host: host.to_owned(), path: path.to_owned(), reference },
            None => {
                let path = if path.contains('/') { path.to_owned() } else { format!("library/{path}") };
                Self { host: HUB.to_owned(), path, reference }
            }
        }
    }
}

/// Whether requests to this host use plain HTTP: a host of the list, or the loopback interface. The host may have a
/// port.
pub(crate) fn is_plain(host: &str, plain: &[String]) -> bool {
    let name = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let is_loopback = name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || plain.iter().any(|known| known == host)
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
            let address = Address::of(&image.parse().unwrap());
            assert_eq!((address.host.as_str(), address.path.as_str(), address.reference.text()), (host, path, place));
        }
    }

    #[test]
    fn only_loopback_and_the_named_hosts_use_plain_http() {
        let named = ["registry.example.com:5000".to_owned()];
        for host in ["localhost", "localhost:5000", "127.0.0.2:1", "[::1]:5000", "registry.example.com:5000"] {
            assert!(is_plain(host, &named), "{host}");
        }
        for host in ["registry.example.com", "localhost.example.com", "10.0.0.1:5000", "[2001:db8::1]:5000"] {
            assert!(!is_plain(host, &named), "{host}");
        }
    }
}
