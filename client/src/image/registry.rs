//! Pulls and pushes images through the engine, with the logins from `docker login`. Also finds these logins for
//! `programs.rs`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use bollard::auth::DockerCredentials;
use bollard::models::ProgressDetail;
use bollard::query_parameters::{CreateImageOptionsBuilder, PushImageOptionsBuilder};
use docker_credential::{CredentialRetrievalError, DockerCredential};
use image_program::logins::fit;
use protocol::image::ImageRef;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::engine::{Engine, each_answer};
use super::names::{familiar, login_server, short, tag_or_digest};
use crate::ending::error::Error;
use crate::output::Notes;

/// Pulls an image that the engine does not have.
pub(super) async fn pull(engine: &Engine, image: &ImageRef, notes: &Notes) -> Result<(), Error> {
    let options =
        CreateImageOptionsBuilder::default().from_image(image.repository()).tag(&tag_or_digest(image)).build();
    let login = login(engine, image, notes).await?;
    let mut layers = Layers::default();
    let pulled = each_answer(engine.patient.create_image(Some(options), None, login), |answer| {
        layers.note(answer.id, answer.progress_detail.as_ref());
        notes.show_step(&format!("image {}: pulling{}", short(image), layers.shown()));
    });
    pulled.await.map_err(|reason| not_found(image, &reason))
}

/// The error for an image that is neither on this machine nor in its registry.
pub(super) fn not_found(image: &ImageRef, reason: &str) -> Error {
    let image = short(image);
    let error = Error::image(format!("the image {image} is not on this machine and cannot be pulled: {reason}"));
    // A build cannot give its image a name with a digest.
    if image.contains('@') {
        return error.hint("check the name");
    }
    error.hint(format!("check the name, or build the image: docker build -t {image} FOLDER"))
}

/// Pushes an image. The registry is the first part of the image's name. Returns the image's name with the digest in
/// place of the tag. A tag is not enough: the next push may move it, and a node that already has an image with the tag
/// would not pull the new image.
pub(super) async fn push(engine: &Engine, image: &ImageRef, notes: &Notes) -> Result<ImageRef, Error> {
    let refused = |reason: String| {
        let hint = "can Docker reach the registry, and are you logged in? docker login HOST";
        Error::image(format!("push {image}: {reason}")).hint(hint)
    };
    let options = PushImageOptionsBuilder::default().tag(&tag_or_digest(image)).build();
    let login = login(engine, image, notes).await?;
    let mut layers = Layers::default();
    let sent = each_answer(engine.patient.push_image(image.repository(), Some(options), login), |answer| {
        layers.note(None, answer.progress_detail.as_ref());
        notes.show_step(&format!("image {}: pushing{}", short(image), layers.shown()));
    });
    sent.await.map_err(refused)?;
    let found = engine.inspect(image).await?;
    let digests = found.map(|found| found.digests).unwrap_or_default();
    pushed(image, &digests).ok_or_else(|| {
        refused("the push succeeded, but Docker names no digest of the image in the registry".to_owned())
    })
}

/// The image's name with its digest in place of the tag. Ignores digests in other repositories.
fn pushed(image: &ImageRef, digests: &[String]) -> Option<ImageRef> {
    let repository = familiar(image.repository());
    let digest = digests.iter().find_map(|known| familiar(known).strip_prefix(repository)?.strip_prefix('@'))?;
    image.at(digest)
}

/// The login for the image's registry, in the form that the engine takes, if there is one.
async fn login(engine: &Engine, image: &ImageRef, notes: &Notes) -> Result<Option<DockerCredentials>, Error> {
    let serveraddress = Some(login_server(image).to_owned());
    Ok(stored_login(image, engine.folder.as_deref(), notes).await?.map(|login| match login {
        DockerCredential::UsernamePassword(username, password) => DockerCredentials {
            username: Some(username),
            password: Some(password),
            serveraddress,
            ..DockerCredentials::default()
        },
        DockerCredential::IdentityToken(token) => {
            DockerCredentials { identitytoken: Some(token), serveraddress, ..DockerCredentials::default() }
        }
    }))
}

/// The login for the image's registry, if `config.json` in this folder of the docker command has one. Uses a blocking
/// thread, because the lookup may run a helper program.
pub(super) async fn stored_login(
    image: &ImageRef,
    folder: Option<&Path>,
    notes: &Notes,
) -> Result<Option<DockerCredential>, Error> {
    let (asked, config) = (image.clone(), folder.map(|folder| folder.join("config.json")));
    let found = tokio::task::spawn_blocking(move || {
        let config = config.ok_or(CredentialRetrievalError::ConfigNotFound)?;
        let config = fs::read(config).map_err(|_| CredentialRetrievalError::ConfigReadError)?;
        let key = key_with_path(&config, &asked);
        docker_credential::get_credential_from_reader(&config[..], key.as_deref().unwrap_or(login_server(&asked)))
    });
    match found.await.expect("the task that reads the login neither panics nor is aborted") {
        Ok(login) => Ok(Some(login)),
        Err(error) => {
            if let Some(helper) = without_login(&error, login_server(image))? {
                notes.say(&format!("image {}: {helper}; continuing without a login", short(image)));
            }
            Ok(None)
        }
    }
}

/// The key of the login for the part of a registry to which the image belongs, such as `registry.example.com/team`.
/// Podman and Kubernetes know such keys. A `config.json` may contain them if another program than the docker command
/// wrote it.
fn key_with_path(config: &[u8], image: &ImageRef) -> Option<String> {
    #[derive(Deserialize)]
    struct Config {
        auths: BTreeMap<String, BTreeMap<String, IgnoredAny>>,
    }
    let Config { auths } = serde_json::from_slice(config).ok()?;
    // The login of an entry without fields is in a credential store, which knows only hosts.
    let keys = auths.into_iter().filter(|(_, entry)| !entry.is_empty()).map(|(key, _)| key);
    let fitting = keys.filter_map(|key| Some((fit(&key, image).filter(|fit| fit.has_path())?, key)));
    fitting.max().map(|(_, key)| key)
}

/// Describes the failure of a credential helper, if there is no login because of this failure. A missing login is not
/// an error, because most images need no login. The docker command has the same rule. A helper without a login for the
/// registry has not failed.
fn without_login(error: &CredentialRetrievalError, server: &str) -> Result<Option<String>, Error> {
    match error {
        // The text is from docker-credential-helpers (`credentials/error.go`). Helpers print errors to stdout.
        CredentialRetrievalError::HelperFailure { stdout, .. } if stdout.contains("credentials not found") => Ok(None),
        CredentialRetrievalError::HelperFailure { helper, stdout, stderr } => {
            let words = [stdout, stderr].into_iter().flat_map(|text| text.lines()).find(|line| !line.trim().is_empty());
            Ok(Some(format!("{helper} failed: {}", words.unwrap_or("no output").trim())))
        }
        CredentialRetrievalError::HelperCommunicationError => {
            Ok(Some("the credential helper cannot be run".to_owned()))
        }
        CredentialRetrievalError::MalformedHelperResponse => {
            Ok(Some("the credential helper's answer cannot be read".to_owned()))
        }
        // `ConfigReadError` may also mean that the file is missing.
        CredentialRetrievalError::NoCredentialConfigured
        | CredentialRetrievalError::ConfigNotFound
        | CredentialRetrievalError::ConfigReadError => Ok(None),
        CredentialRetrievalError::CredentialDecodingError | CredentialRetrievalError::CredentialMismatchError => {
            let sentence = format!("read the login for {server}: {error}");
            Err(Error::image(sentence).hint("log in again: docker login HOST"))
        }
    }
}

/// Progress of the layers of an image, in bytes.
#[derive(Default)]
struct Layers {
    by_id: HashMap<String, (i64, i64)>,
}

impl Layers {
    fn note(&mut self, id: Option<String>, detail: Option<&ProgressDetail>) {
        if let Some(&ProgressDetail { current: Some(current), total: Some(total) }) = detail {
            // For a push, the library does not name the layer, so the size identifies it. Most layers differ in size.
            self.by_id.insert(id.unwrap_or_else(|| total.to_string()), (current, total));
        }
    }

    fn shown(&self) -> String {
        const MEGABYTE: i64 = 1_000_000;
        let (current, total) = self.by_id.values().fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        if total == 0 { String::new() } else { format!(" {} of {} MB", current / MEGABYTE, total / MEGABYTE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_pushed_image_is_named_by_its_digest_in_its_own_repository() {
        let image: ImageRef = "localhost:5000/digits_pod:latest".parse().unwrap();
        let others = vec![format!("other:5000/digits_pod@{}", DIGEST.replace('0', "1"))];
        assert_eq!(pushed(&image, &others), None);
        let known = [others, vec![format!("localhost:5000/digits_pod@{DIGEST}")]].concat();
        assert_eq!(pushed(&image, &known).unwrap().to_string(), format!("localhost:5000/digits_pod@{DIGEST}"));
        let on_hub: ImageRef = "docker.io/me/digits_pod:1".parse().unwrap();
        let known = [format!("me/digits_pod@{DIGEST}")];
        assert_eq!(pushed(&on_hub, &known).unwrap().to_string(), format!("docker.io/me/digits_pod@{DIGEST}"));
    }

    #[test]
    fn a_login_for_a_part_of_a_registry_is_preferred_if_the_file_has_it() {
        let config = r#"{"auths":{
            "r.example":{"auth":"a"}, "r.example/team":{"auth":"b"}, "r.example/team/stored":{}, "docker.io/me":{"auth":"c"}
        }}"#;
        for (image, key) in [
            ("r.example/mnist", None),
            ("r.example/team/mnist", Some("r.example/team")),
            ("r.example/team/stored:1", Some("r.example/team")),
            ("other.example/team/mnist", None),
            ("me/mnist", Some("docker.io/me")),
        ] {
            assert_eq!(key_with_path(config.as_bytes(), &image.parse().unwrap()).as_deref(), key, "{image}");
        }
        assert_eq!(key_with_path(b"no JSON", &"mnist".parse().unwrap()), None);
    }

    #[test]
    fn a_broken_helper_is_reported_and_only_an_undecodable_login_is_an_error() {
        let failure = |stdout: &str| CredentialRetrievalError::HelperFailure {
            helper: "docker-credential-x".to_owned(),
            stdout: stdout.to_owned(),
            stderr: String::new(),
        };
        for (error, said) in [
            (failure("credentials not found in native keychain\n"), None),
            (failure("locked\n"), Some("docker-credential-x failed: locked")),
            (CredentialRetrievalError::HelperCommunicationError, Some("the credential helper cannot be run")),
            (CredentialRetrievalError::NoCredentialConfigured, None),
        ] {
            assert_eq!(without_login(&error, "r:5000").unwrap().as_deref(), said);
        }
        let unreadable = without_login(&CredentialRetrievalError::CredentialDecodingError, "r:5000");
        assert_eq!(unreadable.unwrap_err().to_string(), "read the login for r:5000: Unable to decode credential");
    }

    #[test]
    fn the_hint_suggests_a_build_only_for_a_name_without_a_digest() {
        let hint = |image: &str| not_found(&image.parse().unwrap(), "").hint.unwrap();
        assert_eq!(hint("digits"), "check the name, or build the image: docker build -t digits FOLDER");
        assert_eq!(hint(&format!("digits@{DIGEST}")), "check the name");
    }

    #[test]
    fn the_progress_is_the_sum_of_all_layers() {
        let mut layers = Layers::default();
        assert_eq!(layers.shown(), "");
        let detail = |current, total| ProgressDetail { current: Some(current), total: Some(total) };
        layers.note(Some("a".to_owned()), Some(&detail(1_000_000, 10_000_000)));
        layers.note(Some("b".to_owned()), Some(&detail(0, 5_000_000)));
        layers.note(Some("a".to_owned()), Some(&detail(9_000_000, 10_000_000)));
        assert_eq!(layers.shown(), " 9 of 15 MB");
    }
}
