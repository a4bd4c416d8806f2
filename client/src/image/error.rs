//! Errors from making a wrapped image. Errors that the user can fix have a hint.

use std::io;
use std::path::PathBuf;

use protocol::image::ImageRef;

use super::elf::{ElfFault, Machine};
use crate::master::client::MasterError;
use protocol::code::SCRIPT;

/// How to choose another engine.
const DOCKER_HINT: &str = "with minikube: eval $(minikube docker-env); else: unset DOCKER_HOST and DOCKER_CONTEXT, \
    then docker context use NAME; docker context ls lists the names";

/// Why no wrapped image could be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// Neither a flag nor a Dockerfile names the image.
    #[error("no image to run: --image is not given, and there is no Dockerfile in {}", .0.display())]
    NoImage(PathBuf),
    /// The value of `--push` and the image's name together are not a valid image name.
    #[error("--push {registry}: the result {registry}/{image} is not a valid image name")]
    NoName { image: ImageRef, registry: String },
    /// The file of `--agent-binary` cannot be read.
    #[error("--agent-binary: read {}", path.display())]
    AgentFile { path: PathBuf, source: io::Error },
    /// The agent would not start in an image.
    #[error("the agent {origin} {fault}")]
    AgentUnfit { origin: String, fault: ElfFault },
    /// Agent and image are for different processors.
    #[error("the agent {origin} is for {agent}, but the image {image} is for {wanted}")]
    AgentForeign { origin: String, agent: Machine, image: String, wanted: Machine },
    /// There is no agent beside the client, and no master to fetch one from.
    #[error("no agent to put into the image: {0}")]
    NoAgent(String),
    /// The agent could not be fetched from the master.
    #[error("fetch the agent from the master")]
    Master(#[from] MasterError),
    /// The image has no script.
    #[error("the image {image} has no {SCRIPT} in its working directory {folder}")]
    NoScript { image: String, folder: String },
    /// The image has no Python.
    #[error("the image {image} has neither python nor python3 on its PATH ({path})")]
    NoPython { image: String, path: String },
    /// The image's user is root, or not set.
    #[error("the image {0} runs as root")]
    Root(String),
    /// The image's user is a name.
    #[error("the image {image} runs as the user \"{user}\": Kubernetes cannot verify that a named user is not root")]
    UserByName { image: String, user: String },
    /// `--image-pull-policy Always` is given without `--push`.
    #[error(
        "--image-pull-policy Always: Muster adds its agent to the image {0}, and nodes cannot pull the result, because \
         no registry has it"
    )]
    NothingToPull(String),
    /// A file or folder of a build cannot be read.
    #[error("read {} for the build", path.display())]
    Context { path: PathBuf, source: io::Error },
    /// A line of .dockerignore is not a valid pattern.
    #[error(".dockerignore: invalid pattern \"{0}\"")]
    Ignore(String),
    /// Docker's address is invalid. `named_by` is the variable or context with the address.
    #[error(
        "{named_by}: invalid address \"{address}\": use unix://PATH, tcp://HOST:PORT, http://HOST:PORT or \
         https://HOST:PORT"
    )]
    DockerHost { named_by: String, address: String },
    /// The chosen Docker context does not exist. `store` is the folder of all contexts.
    #[error("there is no Docker context \"{context}\" in {}", store.display())]
    NoDockerContext { context: String, store: PathBuf },
    /// A file of the docker command cannot be read, or is invalid JSON.
    #[error("read {}", path.display())]
    DockerFile { path: PathBuf, source: io::Error },
    /// Docker does not answer.
    #[error("cannot reach Docker at {address}: {reason}")]
    Unreachable { address: String, reason: String },
    /// The image is neither on this machine nor in its registry.
    #[error("the image {image} is not on this machine and cannot be pulled: {reason}")]
    NotFound { image: String, reason: String },
    /// A build failed. `log` is the end of its output, with a line break before each line.
    #[error("build {image}: {reason}{log}")]
    Build { image: String, reason: String, log: String },
    /// Another step failed. `doing` names the step.
    #[error("{doing}: {reason}")]
    Engine { doing: String, reason: String },
    /// A push failed.
    #[error("push {image}: {reason}")]
    Push { image: String, reason: String },
    /// The login that `docker login` stored cannot be read.
    #[error("read the login for {server}: {reason}")]
    Login { server: String, reason: String },
    /// `MUSTER_LOAD` does not name a tool that loads images.
    #[error("MUSTER_LOAD: invalid tool \"{0}\": use minikube, kind or k3d")]
    Loader(String),
    /// The cluster's tool is not on the PATH.
    #[error("load {image}: {command} could not be started")]
    NoLoader { image: String, command: String, source: io::Error },
    /// The cluster's tool failed. `outcome` is its exit status and the end of its output.
    #[error("load {image}: {command} {outcome}")]
    Load { image: String, command: String, outcome: String },
    /// The user pressed Ctrl-C.
    #[error("interrupted: nothing was submitted")]
    Interrupted,
    /// Signals cannot be caught.
    #[error("listen for signals")]
    Signals(#[source] io::Error),
}

impl ImageError {
    /// The next step for the user.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            // A build cannot give its image a name with a digest.
            Self::NotFound { image, .. } if image.contains('@') => "check the name",
            Self::NotFound { image, .. } => {
                return Some(format!("check the name, or build the image: docker build -t {image} FOLDER"));
            }
            Self::Build { image, reason, .. } if reason.to_lowercase().contains("buildkit") => {
                return Some(format!("build it yourself: docker build -t {image} . ; then give --image {image}"));
            }
            Self::Loader(_) => "unset MUSTER_LOAD, or set it to minikube, kind or k3d",
            Self::NoLoader { .. } => "install this program, or give --push REGISTRY",
            Self::Master(_) | Self::NoAgent(_) => {
                "make build puts an agent beside the client; or give --agent-binary PATH"
            }
            Self::NoImage(_) => "give --image REF, or put a Dockerfile beside exec.py",
            Self::NoName { .. } => "give a shorter --push, or another --image",
            Self::AgentUnfit { .. } => "build a static agent with make build, or name one with --agent-binary PATH",
            Self::AgentForeign { .. } => {
                "give an agent for that processor with --agent-binary PATH, or another --image"
            }
            Self::NoScript { .. } => "add WORKDIR and COPY exec.py ./ to the image's Dockerfile",
            Self::NoPython { .. } => "in the image's Dockerfile, begin FROM an image that has Python, or set ENV PATH",
            Self::Root(_) | Self::UserByName { .. } => {
                "set a numeric, non-zero USER at the end of the Dockerfile, such as USER 1000, or give --allow-root"
            }
            Self::NothingToPull(_) => "give --push REGISTRY, or leave out --image-pull-policy",
            Self::DockerHost { .. } | Self::NoDockerContext { .. } => DOCKER_HINT,
            Self::Unreachable { .. } => {
                return Some(format!("is Docker running, and may you use it? {DOCKER_HINT}"));
            }
            Self::Push { .. } => "can Docker reach the registry, and are you logged in? docker login HOST",
            Self::Login { .. } => "log in again: docker login HOST",
            Self::AgentFile { .. }
            | Self::DockerFile { .. }
            | Self::Context { .. }
            | Self::Ignore(_)
            | Self::Build { .. }
            | Self::Engine { .. }
            | Self::Load { .. }
            | Self::Interrupted
            | Self::Signals(_) => return None,
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(error: &ImageError) -> String {
        error.hint().unwrap_or_default()
    }

    #[test]
    fn a_build_that_needs_buildkit_has_a_hint_to_build_by_hand() {
        let build = |reason: &str| {
            let (image, reason, log) = ("muster-digits".to_owned(), reason.to_owned(), String::new());
            ImageError::Build { image, reason, log }
        };
        let expected = "build it yourself: docker build -t muster-digits . ; then give --image muster-digits";
        assert_eq!(hint(&build("the --mount option requires BuildKit")), expected);
        assert_eq!(build("pip returned 1").hint(), None);
    }

    #[test]
    fn the_hint_suggests_a_build_only_for_a_name_without_a_digest() {
        let nowhere = |image: &str| ImageError::NotFound { image: image.to_owned(), reason: String::new() };
        assert_eq!(hint(&nowhere("digits")), "check the name, or build the image: docker build -t digits FOLDER");
        assert_eq!(hint(&nowhere("digits@sha256:0")), "check the name");
    }

    #[test]
    fn a_missing_engine_or_context_has_a_hint_about_contexts() {
        let unreachable = ImageError::Unreachable { address: String::new(), reason: String::new() };
        let absent = ImageError::NoDockerContext { context: String::new(), store: PathBuf::new() };
        for error in [unreachable, absent] {
            assert!(hint(&error).contains("docker context use"), "{}", hint(&error));
        }
    }
}
