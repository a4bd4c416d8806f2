//! Which entry of a Docker configuration has the login for an image (pure). Follows Kubernetes
//! (`pkg/credentialprovider/keyring.go`), except that the path of a key matches only whole parts of the image's path.

use protocol::image::{HUB_NAMES, ImageRef};

use super::address::path;

/// How closely a key fits an image. The entry with the greatest value has the login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fit {
    /// Whether the key has the registry's host, and not a pattern.
    is_exact: bool,
    /// Length of the key's path.
    path: usize,
}

impl Fit {
    /// Whether the key is for a part of its registry.
    pub fn has_path(self) -> bool {
        self.path > 0
    }
}

/// How closely the key of an entry fits an image. `None` if the entry is for other images. A key has the form
/// `[SCHEME://]HOST[:PORT][/PATH]`, where `*` stands for any text in a label of the host.
pub fn fit(key: &str, image: &ImageRef) -> Option<Fit> {
    let key = key.strip_prefix("https://").or(key.strip_prefix("http://")).unwrap_or(key);
    let (host, prefix) = key.split_once('/').unwrap_or((key, ""));
    // The API's version is not part of an image's path.
    let prefix = prefix.strip_prefix("v1/").or(prefix.strip_prefix("v2/")).unwrap_or(prefix).trim_end_matches('/');
    let is_exact = image.host().map_or(HUB_NAMES.contains(&host), |known| known == host);
    let is_host = is_exact || image.host().is_some_and(|known| is_like(host, known));
    let rest = path(image).strip_prefix(prefix).map(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_path = prefix.is_empty() || rest == Some(true);
    (is_host && is_path).then_some(Fit { is_exact, path: prefix.len() })
}

/// Whether a host has as many labels as a pattern, and each label matches the label of the pattern.
fn is_like(pattern: &str, host: &str) -> bool {
    let is_label_like = |(pattern, label): (&str, &str)| match pattern.split_once('*') {
        Some((begin, end)) => {
            let rest = label.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end));
            // `*` does not match a port.
            rest.is_some_and(|rest| !rest.contains(':'))
        }
        None => pattern == label,
    };
    pattern.split('.').count() == host.split('.').count() && pattern.split('.').zip(host.split('.')).all(is_label_like)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_for_the_images_of_its_host_and_path() {
        for (key, image) in [
            ("r.example:5000", "r.example:5000/mnist"),
            ("https://r.example/v1/", "r.example/mnist:1"),
            ("http://r.example/v2/team/", "r.example/team/mnist"),
            ("r.example/team", "r.example/team/mnist"),
            ("r.example/team/mnist", "r.example/team/mnist:1"),
            ("*.example", "r.example/mnist"),
            ("*-east.r.example:5000/team", "us-east.r.example:5000/team/mnist"),
            ("https://index.docker.io/v1/", "me/mnist"),
            ("docker.io", "registry-1.docker.io/me/mnist"),
            ("docker.io/library", "python"),
            ("docker.io/me", "me/mnist"),
        ] {
            assert!(fit(key, &image.parse().unwrap()).is_some(), "{key} {image}");
        }
        for (key, image) in [
            ("r.example", "r.example:5000/mnist"),
            ("r.example", "evil.r.example/mnist"),
            ("r.example/team", "r.example/teams/mnist"),
            ("r.example/team/mnist/x", "r.example/team/mnist"),
            ("*.example", "a.r.example/mnist"),
            ("*", "localhost:5000/mnist"),
            ("*.example*", "r.example:5000/mnist"),
            ("r.example", "me/mnist"),
            ("*.docker.io", "me/mnist"),
            ("https://index.docker.io/v1/", "r.example/mnist"),
            ("docker.io/me", "you/mnist"),
            ("", "mnist"),
        ] {
            assert_eq!(fit(key, &image.parse().unwrap()), None, "{key} {image}");
        }
    }

    #[test]
    fn the_longest_path_at_the_registrys_own_host_fits_best() {
        let image = "r.example/team/a/mnist".parse().unwrap();
        let mut keys =
            ["r.example/team/a", "*.example/team/a/mnist", "r.example", "*.example", "https://r.example/team"];
        keys.sort_by_key(|key| fit(key, &image));
        let expected =
            ["*.example", "*.example/team/a/mnist", "r.example", "https://r.example/team", "r.example/team/a"];
        assert_eq!(keys, expected);
        assert!(fit("r.example/team", &image).unwrap().has_path() && !fit("r.example/v1/", &image).unwrap().has_path());
    }
}
