//! Docker's API, as far as images need it. No decisions and no printing: what is asked for is done or refused.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::ImageInspect;
use bollard::query_parameters::{ListImagesOptionsBuilder, TagImageOptionsBuilder};
use protocol::image::ImageRef;
use serde_json::Value;

use super::endpoint::Endpoint;
use super::error::ImageError;
use super::layer::Base;
use super::names::listed;
use crate::config::DockerVariables;

/// For an answer to begin. Builds and uploads answer when the engine has read everything, so it is long; a connection
/// that cannot be made fails by itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// For the first answer of all, after which the engine is known to live.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// An engine that has answered.
pub(super) struct Engine {
    pub(super) docker: Docker,
}

/// An image as a list shows it.
#[derive(Debug, Clone, Default)]
pub(super) struct Listed {
    /// Its id.
    pub(super) id: String,
    /// The names that were asked for and that it has, by tag or digest.
    pub(super) names: Vec<String>,
    /// Its labels.
    pub(super) labels: HashMap<String, String>,
}

impl Engine {
    /// Finds the engine as the docker command does. No version is agreed upon: bollard 0.21 puts none into its paths, by
    /// which an engine takes its own newest, so negotiating one would change nothing and cost more than the list does.
    pub(super) async fn connect(variables: &DockerVariables) -> Result<Self, ImageError> {
        let endpoint = Endpoint::of(variables)?;
        let unreachable = |reason: String| ImageError::Unreachable { address: endpoint.to_string(), reason };
        let docker = transport(&endpoint)?.map_err(|error| unreachable(reason(&error)))?;
        let answer = tokio::time::timeout(FIRST_ANSWER_TIMEOUT, docker.ping()).await;
        let answer = answer.map_err(|_| unreachable(format!("no answer in {} s", FIRST_ANSWER_TIMEOUT.as_secs())))?;
        answer.map_err(|error| unreachable(reason(&error)))?;
        Ok(Self { docker })
    }

    /// The images that have one of these names as a list shows them, by one request. A name without a tag stands for all
    /// tags (`FamiliarMatch` in distribution/reference).
    pub(super) async fn list(&self, names: [&str; 2]) -> Result<Vec<Listed>, ImageError> {
        let names = names.map(str::to_owned).to_vec();
        let options = ListImagesOptionsBuilder::default().filters(&HashMap::from([("reference", names)])).build();
        let found = self.docker.list_images(Some(options)).await.map_err(refused("list images"))?;
        let shown = found.into_iter().map(|image| Listed {
            id: image.id,
            names: image.repo_tags.into_iter().chain(image.repo_digests).collect(),
            labels: image.labels,
        });
        Ok(shown.collect())
    }

    /// What is to be known of an image to put a layer on it.
    pub(super) async fn inspect(&self, id: &str) -> Result<Base, ImageError> {
        let doing = format!("inspect {id}");
        let found = self.docker.inspect_image(id).await.map_err(refused(&doing))?;
        base(found).ok_or_else(|| ImageError::Engine { doing, reason: "parts of the answer are missing".to_owned() })
    }

    /// The digests by which registries know an image, each behind its repository's name.
    pub(super) async fn digests(&self, image: &ImageRef) -> Result<Vec<String>, ImageError> {
        let found = self.docker.inspect_image(&listed(image)).await;
        Ok(found.map_err(refused(&format!("inspect {image}")))?.repo_digests.unwrap_or_default())
    }

    /// Gives an image one more name.
    pub(super) async fn tag(&self, id: &str, name: &ImageRef) -> Result<(), ImageError> {
        let tag = name.tag().unwrap_or("latest");
        let options = TagImageOptionsBuilder::default().repo(name.repository()).tag(tag).build();
        self.docker.tag_image(id, Some(options)).await.map_err(refused(&format!("name {id} {name}")))
    }
}

/// What an engine says, in as few words as leave nothing out: the library's own sentences repeat their causes.
pub(super) fn reason(error: &bollard::errors::Error) -> String {
    use bollard::errors::Error;
    #[expect(clippy::wildcard_enum_match_arm, reason = "the library has a variant for each of its own layers")]
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Error::DockerStreamError { error } => error.trim().to_owned(),
        Error::SocketNotFoundError(path) => format!("there is no socket {path}"),
        other => root_cause(other),
    }
}

/// Turns what an engine says into an error about something that was to be done.
pub(super) fn refused(doing: &str) -> impl FnOnce(bollard::errors::Error) -> ImageError {
    let doing = doing.to_owned();
    move |error| ImageError::Engine { doing, reason: reason(&error) }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// The means to speak to an engine; nothing is sent yet.
fn transport(endpoint: &Endpoint) -> Result<Result<Docker, bollard::errors::Error>, ImageError> {
    let address = endpoint.address.as_str();
    let (seconds, version) = (ANSWER_TIMEOUT.as_secs(), bollard::API_DEFAULT_VERSION);
    let is_https = address.starts_with("https://");
    let is_tcp = address.starts_with("tcp://") || address.starts_with("http://");
    if address.starts_with("unix://") {
        return Ok(Docker::connect_with_unix(address, seconds, version));
    }
    if is_https || (is_tcp && endpoint.certificates.is_some()) {
        // An error says that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = endpoint.certificates.clone().unwrap_or_default();
        let [key, cert, ca] = ["key.pem", "cert.pem", "ca.pem"].map(|name| folder.join(name));
        return Ok(Docker::connect_with_ssl(address, &key, &cert, &ca, seconds, version));
    }
    if is_tcp {
        return Ok(Docker::connect_with_http(address, seconds, version));
    }
    Err(ImageError::DockerHost { named_by: endpoint.named_by(), address: address.to_owned() })
}

fn base(found: ImageInspect) -> Option<Base> {
    let config = serde_json::to_value(found.config.unwrap_or_default()).ok()?;
    let Value::Object(config) = config else { return None };
    Some(Base {
        id: found.id?,
        architecture: found.architecture?,
        variant: found.variant,
        os: found.os?,
        created: found.created,
        config,
        layers: found.root_fs?.layers?,
    })
}
