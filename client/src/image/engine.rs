//! The connection to Docker's API, and the short calls. This file prints nothing.

use std::path::PathBuf;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as EngineError;
use bollard::models::{ImageInspect, SystemInfo, SystemVersion};
use bollard::query_parameters::TagImageOptionsBuilder;
use futures_util::Stream;
use master_client::root_cause;
use protocol::image::ImageRef;
use serde_json::Value;

use super::endpoint::{DOCKER_HINT, EngineEndpoint};
use super::layer::Base;
use super::names::exact;
use super::stall::{self, STALL_LIMIT};
use crate::address::config::DockerVariables;
use crate::ending::error::Error;

/// Timeout of the first answer, which shows that the engine works.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// A timeout that never passes, for builds, pulls and pushes. The callers limit the time without progress instead (see
/// [`super::stall`]).
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);

/// The component that only podman lists in `GET /version`.
const PODMAN_ENGINE: &str = "Podman Engine";
/// The `driver-type` in `GET /info` if containerd stores the images (moby, `daemon/containerd`).
const CONTAINERD_SNAPSHOTTER: &str = "io.containerd.snapshotter";

/// The connection to an engine that has answered.
pub(super) struct Engine {
    /// For short calls.
    pub(super) docker: Docker,
    /// For calls without a time limit.
    pub(super) patient: Docker,
    /// The folder of the docker command's files.
    pub(super) folder: Option<PathBuf>,
}

/// An image that the engine has.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Inspected {
    /// The image as a base for the agent's layer.
    pub(super) base: Base,
    /// The names of the image with their tags, as listed by the engine.
    pub(super) tags: Vec<String>,
    /// The digests of the image in registries, in the form `REPOSITORY@DIGEST`.
    pub(super) digests: Vec<String>,
}

/// How the engine gets the wrapped image. The engine already has the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// With `docker load` of an archive that contains only the agent's layer.
    Load,
    /// With a build, because the engine refuses an archive that lacks the base's layers.
    Build,
}

impl Way {
    /// Only Docker with its own image store loads an archive that lacks the base's layers. By default, Docker 29 stores
    /// images in containerd instead.
    fn of(version: &SystemVersion, info: &SystemInfo) -> Self {
        let is_podman = version.components.iter().flatten().any(|component| component.name == PODMAN_ENGINE);
        let drivers = info.driver_status.iter().flatten();
        let by_containerd = drivers.flatten().any(|word| word.starts_with(CONTAINERD_SNAPSHOTTER));
        if is_podman || by_containerd { Self::Build } else { Self::Load }
    }
}

impl Engine {
    /// Connects to the engine that the docker command would use. Does not negotiate the API's version, because
    /// bollard 0.21 sends no version in its paths. The engine then uses its newest version.
    pub(super) async fn connect(variables: &DockerVariables) -> Result<Self, Error> {
        let endpoint = EngineEndpoint::of(variables)?;
        let unreachable = |reason: String| {
            Error::image(format!("cannot reach Docker at {endpoint}: {reason}"))
                .hint(format!("is Docker running, and may you use it? {DOCKER_HINT}"))
        };
        let docker = transport(&endpoint)?.map_err(|error| unreachable(reason(&error)))?;
        let answer = tokio::time::timeout(FIRST_ANSWER_TIMEOUT, docker.ping()).await;
        let answer = answer.map_err(|_| unreachable(format!("no answer in {} s", FIRST_ANSWER_TIMEOUT.as_secs())))?;
        answer.map_err(|error| unreachable(reason(&error)))?;
        let patient = docker.clone().with_timeout(NO_TIMEOUT);
        Ok(Self { docker, patient, folder: variables.folder.clone() })
    }

    /// The image with this name, or `None` if the engine has none. See [`exact`] for the form of the name.
    pub(super) async fn inspect(&self, image: &ImageRef) -> Result<Option<Inspected>, Error> {
        let name = exact(image);
        match self.docker.inspect_image(&name).await {
            Ok(found) => inspected(found)
                .map(Some)
                .ok_or_else(|| Error::image(format!("inspect {name}: parts of the answer are missing"))),
            Err(EngineError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(refused(&format!("inspect {name}"))(error)),
        }
    }

    /// How this engine gets the wrapped image.
    pub(super) async fn way(&self) -> Result<Way, Error> {
        let (version, info) = (self.docker.version(), self.docker.info());
        let (version, info) = tokio::try_join!(version, info).map_err(refused("ask Docker for its version"))?;
        Ok(Way::of(&version, &info))
    }

    /// Adds a name to an image. `id` is the image's id or another name.
    pub(super) async fn tag(&self, id: &str, name: &ImageRef) -> Result<(), Error> {
        let tag = name.tag().unwrap_or("latest");
        let options = TagImageOptionsBuilder::default().repo(name.repository()).tag(tag).build();
        self.docker.tag_image(id, Some(options)).await.map_err(refused(&format!("tag {id} as {name}")))
    }
}

/// The engine's own error text, or the text of the innermost cause. The library's errors repeat their causes.
pub(super) fn reason(error: &EngineError) -> String {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the library has a variant for each of its own layers")]
    match error {
        EngineError::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        EngineError::DockerStreamError { error } => error.trim().to_owned(),
        EngineError::SocketNotFoundError(path) => format!("there is no socket {path}"),
        other => root_cause(other),
    }
}

/// Handles each answer of a stream. The error is the engine's reason, or says that the engine made no progress.
pub(super) async fn each_answer<T>(
    answers: impl Stream<Item = Result<T, EngineError>>,
    mut handle: impl FnMut(T),
) -> Result<(), String> {
    let mut answers = std::pin::pin!(answers);
    while let Some(answer) = stall::next(&mut answers).await.map_err(|stalled| stalled.to_string())? {
        handle(answer.map_err(|error| reason(&error))?);
    }
    Ok(())
}

/// The error for a call that the engine refused. `doing` describes the call.
pub(super) fn refused(doing: &str) -> impl FnOnce(EngineError) -> Error {
    move |error| Error::image(format!("{doing}: {}", reason(&error)))
}

/// Creates the connection to an engine. Sends nothing yet.
fn transport(endpoint: &EngineEndpoint) -> Result<Result<Docker, EngineError>, Error> {
    let address = endpoint.address.as_str();
    let (seconds, version) = (STALL_LIMIT.as_secs(), bollard::API_DEFAULT_VERSION);
    let is_https = address.starts_with("https://");
    let is_tcp = address.starts_with("tcp://") || address.starts_with("http://");
    if address.starts_with("unix://") {
        return Ok(Docker::connect_with_unix(address, seconds, version));
    }
    if is_https || (is_tcp && endpoint.certificates.is_some()) {
        // An error means that a provider of cryptography is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = endpoint.certificates.clone().unwrap_or_default();
        let [key, cert, ca] = ["key.pem", "cert.pem", "ca.pem"].map(|name| folder.join(name));
        return Ok(Docker::connect_with_ssl(address, &key, &cert, &ca, seconds, version));
    }
    if is_tcp {
        return Ok(Docker::connect_with_http(address, seconds, version));
    }
    let sentence = format!(
        "{}: invalid address \"{address}\": use unix://PATH, tcp://HOST:PORT, http://HOST:PORT or https://HOST:PORT",
        endpoint.named_by()
    );
    Err(Error::input(sentence).hint(DOCKER_HINT))
}

fn inspected(found: ImageInspect) -> Option<Inspected> {
    let config = serde_json::to_value(found.config.unwrap_or_default()).ok()?;
    let Value::Object(config) = config else { return None };
    let base = Base {
        id: found.id?,
        architecture: found.architecture?,
        variant: found.variant,
        os: found.os?,
        created: found.created,
        config,
        layers: found.root_fs?.layers?,
    };
    Some(Inspected { base, tags: found.repo_tags.unwrap_or_default(), digests: found.repo_digests.unwrap_or_default() })
}
