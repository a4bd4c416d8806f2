//! Names of images: for requests to an engine, as listed by an engine, for people, and for new images.

use protocol::image::{HUB_NAMES, ImageRef};

use crate::request::words_of;

/// Maximum number of characters taken from a folder's name.
const FOLDER_CHARACTERS_MAX: usize = 100;
/// The tag that a name without a tag means.
const DEFAULT_TAG: &str = "latest";
const DEFAULT_PATH: &str = "library/";
/// The key under which `docker login` stores the login of Docker Hub.
const HUB_LOGIN: &str = "https://index.docker.io/v1/";
/// Prefix of an image named after a folder. Without the prefix, an image built from a folder `python` would replace the
/// public image `python` on this machine.
const FOLDER_PREFIX: &str = "muster-";

/// The name for requests to an engine: with a tag or a digest, never both. No host is added or removed, because engines
/// disagree about names without a host.
pub(super) fn exact(image: &ImageRef) -> String {
    let repository = image.repository();
    match image.to_string().split_once('@') {
        Some((_, digest)) => format!("{repository}@{digest}"),
        None => format!("{repository}:{}", image.tag().unwrap_or(DEFAULT_TAG)),
    }
}

/// A name without the default host and path. Docker lists names in this form; podman lists full names.
pub(super) fn familiar(name: &str) -> &str {
    let on_hub = name.split_once('/').filter(|(host, _)| HUB_NAMES.contains(host)).map_or(name, |(_, path)| path);
    on_hub.strip_prefix(DEFAULT_PATH).unwrap_or(on_hub)
}

/// The name for people, without the default tag.
pub(super) fn short(image: &ImageRef) -> String {
    let name = image.to_string();
    name.strip_suffix(&format!(":{DEFAULT_TAG}")).unwrap_or(&name).to_owned()
}

/// The tag or digest to ask a registry for.
pub(super) fn tag_or_digest(image: &ImageRef) -> String {
    let name = image.to_string();
    let digest = name.split_once('@').map(|(_, digest)| digest);
    digest.or(image.tag()).unwrap_or(DEFAULT_TAG).to_owned()
}

/// The key of the login for an image's registry, as `docker login` stores it.
pub(super) fn login_server(image: &ImageRef) -> &str {
    image.host().unwrap_or(HUB_LOGIN)
}

/// The name of the image that is built from a folder: `muster-` and the valid characters of the folder's name.
pub(super) fn of_folder(folder: &str) -> ImageRef {
    let name = words_of(folder, FOLDER_CHARACTERS_MAX);
    // A folder name in another alphabet has no valid characters.
    let name = if name.is_empty() { "training" } else { &name };
    let named = format!("{FOLDER_PREFIX}{name}:{DEFAULT_TAG}");
    named.parse().expect("words of lower-case letters and digits with one hyphen between them make a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> ImageRef {
        name.parse().unwrap()
    }

    #[test]
    fn a_name_for_an_engine_keeps_the_repository_and_has_a_tag_or_a_digest() {
        let digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for (name, asked) in [
            ("digits", "digits:latest"),
            ("digits:2", "digits:2"),
            ("docker.io/library/python:3", "docker.io/library/python:3"),
            ("localhost:5000/library/x", "localhost:5000/library/x:latest"),
        ] {
            assert_eq!(exact(&image(name)), asked);
        }
        assert_eq!(exact(&image(&format!("me/digits:3@{digest}"))), format!("me/digits@{digest}"));
        assert_eq!(tag_or_digest(&image(&format!("me/digits:3@{digest}"))), digest);
    }

    #[test]
    fn names_of_podman_and_docker_have_the_same_familiar_form() {
        for (listed, name) in [
            ("docker.io/library/python:3", "python:3"),
            ("index.docker.io/me/digits:latest", "me/digits:latest"),
            ("library/python:latest", "python:latest"),
            ("localhost:5000/library/x:1", "localhost:5000/library/x:1"),
            ("localhost/digits:1", "localhost/digits:1"),
        ] {
            assert_eq!(familiar(listed), name);
        }
    }

    #[test]
    fn a_short_name_has_no_default_tag() {
        assert_eq!(short(&image("digits_pod:latest")), "digits_pod");
        assert_eq!(short(&image("h:5000/digits_pod:2")), "h:5000/digits_pod:2");
        assert_eq!(tag_or_digest(&image("digits")), "latest");
    }

    #[test]
    fn the_login_for_an_image_is_looked_up_by_the_registry_in_its_name() {
        assert_eq!(login_server(&image("localhost:5000/a/b")), "localhost:5000");
        assert_eq!(login_server(&image("registry.example.com/b")), "registry.example.com");
        for on_hub in ["me/b", "b", "docker.io/me/b", "index.docker.io/me/b", "registry-1.docker.io/me/b"] {
            assert_eq!(login_server(&image(on_hub)), "https://index.docker.io/v1/");
        }
    }

    #[test]
    fn an_image_is_named_after_its_folder() {
        let id = "a".repeat(64);
        let id_named = format!("muster-{id}:latest");
        for (folder, name) in [
            ("digits", "muster-digits:latest"),
            ("My Project (2)", "muster-my-project-2:latest"),
            ("__x--y.z", "muster-x-y-z:latest"),
            ("数字", "muster-training:latest"),
            ("", "muster-training:latest"),
            (&id, id_named.as_str()),
        ] {
            assert_eq!(of_folder(folder).to_string(), name, "{folder}");
        }
        assert!(of_folder(&"é-long ".repeat(90)).repository().len() <= FOLDER_PREFIX.len() + FOLDER_CHARACTERS_MAX);
    }
}
