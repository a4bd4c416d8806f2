//! The address of a master, parsed once.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use reqwest::Url;

use crate::kube_place::KubePlace;

/// `http://HOST:PORT` or `https://…`, with a path if the master is behind a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterUrl {
    url: Url,
    /// The place of a master that is reached through the Kubernetes API. It is shown instead of the URL.
    place: Option<Box<KubePlace>>,
}

impl MasterUrl {
    /// The address of a master that is reached through the Kubernetes API. The host in the URL is not used.
    pub(crate) fn through(place: KubePlace) -> Self {
        Self { url: Url::parse("http://muster").expect("a valid URL"), place: Some(Box::new(place)) }
    }

    /// The address of `path`, which begins with a slash.
    pub(crate) fn join(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        url.set_path(&format!("{}{path}", self.url.path().trim_end_matches('/')));
        url
    }

    /// Whether the master is on this machine. Requests to such a master must not use a proxy.
    pub fn is_loopback(&self) -> bool {
        let host = self.url.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// Whether the master is reached over TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }
}

/// A text that is not the address of a master.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct BadMasterUrl {
    /// What is wrong.
    pub sentence: String,
    /// The next step for the user.
    pub hint: String,
}

impl FromStr for MasterUrl {
    type Err = BadMasterUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown: String = text.chars().take(120).collect();
        let lower = text.to_ascii_lowercase();
        if !lower.starts_with("http://") && !lower.starts_with("https://") {
            let error = not_an_address(&shown, "it must begin with http:// or https://");
            if shown.is_empty() || shown.contains("://") {
                return Err(error);
            }
            let hint = format!("write http://{shown}, or \"local\" for a master of this job only");
            return Err(BadMasterUrl { hint, ..error });
        }
        let url = Url::parse(text).map_err(|error| not_an_address(&shown, &error.to_string()))?;
        let has_login = !url.username().is_empty() || url.password().is_some();
        if has_login || url.query().is_some() || url.fragment().is_some() {
            let sentence = "a master's address may have only a host, a port and a path".to_owned();
            let hint = "give a token in MUSTER_TOKEN or with --token-file FILE".to_owned();
            return Err(BadMasterUrl { sentence, hint });
        }
        Ok(Self { url, place: None })
    }
}

fn not_an_address(text: &str, wrong: &str) -> BadMasterUrl {
    let hint = "write http://HOST:PORT, \"kube\" for a cluster's master, or \"local\" for a master of this job only";
    BadMasterUrl { sentence: format!("\"{text}\" is not the address of a master: {wrong}"), hint: hint.to_owned() }
}

impl fmt::Display for MasterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => place.fmt(f),
            None => f.write_str(self.url.as_str().trim_end_matches('/')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_joined_with_paths() {
        for (base, joined) in [
            ("http://127.0.0.1:7897", "http://127.0.0.1:7897/v1/jobs"),
            ("http://h:1/", "http://h:1/v1/jobs"),
            ("https://h/muster/", "https://h/muster/v1/jobs"),
            ("HTTP://[::1]:5", "http://[::1]:5/v1/jobs"),
        ] {
            assert_eq!(base.parse::<MasterUrl>().unwrap().join("/v1/jobs").as_str(), joined);
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_a_hint() {
        for (text, hint) in [
            ("10.0.0.1:31898", "write http://10.0.0.1:31898,"),
            ("localhost:7897", "write http://localhost:7897,"),
            ("ftp://h:1", "write http://HOST:PORT"),
            ("", "write http://HOST:PORT"),
            ("http://", "write http://HOST:PORT"),
            ("http://h:99999", "write http://HOST:PORT"),
            ("http://me:secret@h:1", "give a token in MUSTER_TOKEN"),
            ("http://h:1/?x=1", "give a token in MUSTER_TOKEN"),
        ] {
            let found = text.parse::<MasterUrl>().unwrap_err().hint;
            assert!(found.starts_with(hint), "{text}: {found}");
        }
    }

    #[test]
    fn loopback_addresses_are_recognised() {
        for (text, loopback) in [
            ("http://localhost:1", true),
            ("http://127.9.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://10.0.0.1:1", false),
            ("http://localhost.example:1", false),
        ] {
            assert_eq!(text.parse::<MasterUrl>().unwrap().is_loopback(), loopback, "{text}");
        }
    }
}
