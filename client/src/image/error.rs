//! The errors of making an image for pods, with a hint for each that its user can mend.

use std::io;
use std::path::PathBuf;

use protocol::image::ImageRef;

use super::elf::{ElfFault, Machine};
use crate::master_client::MasterError;
use protocol::agent::SCRIPT;

/// How to choose another engine.
const DOCKER_HINT: &str = "with minikube: eval $(minikube docker-env); else: unset DOCKER_HOST and DOCKER_CONTEXT, and \
    docker context use NAME, with a name that docker context ls shows";

/// Why there is no image for pods to run. A `reason` is in Docker's or the system's own words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// Neither a flag nor a Dockerfile names the image.
    #[error("no image to run: --image is not given, and there is no Dockerfile in {}", .0.display())]
    NoImage(PathBuf),
    /// `--push` and the image's name make no valid name.
    #[error("--push {registry}: with {image} it is not a valid image name")]
    NoName { image: ImageRef, registry: String },
    /// `--agent-binary` cannot be read.
    #[error("--agent-binary: read {}", path.display())]
    AgentFile { path: PathBuf, source: io::Error },
    /// The agent would not start in an image.
    #[error("the agent {origin} {fault}")]
    AgentUnfit { origin: String, fault: ElfFault },
    /// Agent and image are for different processors.
    #[error("the agent {origin} is for {agent}, but the image {image} is for {wanted}")]
    AgentForeign { origin: String, agent: Machine, image: String, wanted: Machine },
    /// There is no agent beside the client, and no master to ask.
    #[error("no agent to put into the image: {0}")]
    NoAgent(String),
    /// The master did not give its agent.
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
    /// `--image-pull-policy Always` without `--push`.
    #[error("--image-pull-policy Always: nodes cannot pull {0} with the agent in it, since it is in no registry")]
    NothingToPull(String),
    /// A file or folder of a build cannot be read.
    #[error("read {} for the build", path.display())]
    Context { path: PathBuf, source: io::Error },
    /// A line of .dockerignore is no pattern.
    #[error(".dockerignore: invalid pattern \"{0}\"")]
    Ignore(String),
    /// Docker's address has an unknown form. `named_by` is the variable or the context.
    #[error(
        "{named_by}: invalid address \"{address}\": use unix://PATH, tcp://HOST:PORT, http://HOST:PORT or \
         https://HOST:PORT"
    )]
    DockerHost { named_by: String, address: String },
    /// The chosen Docker context does not exist. `store` is the folder of all contexts.
    #[error("there is no Docker context \"{context}\" in {}", store.display())]
    NoDockerContext { context: String, store: PathBuf },
    /// A file of the docker command cannot be read.
    #[error("read {}", path.display())]
    DockerFile { path: PathBuf, source: io::Error },
    /// Docker does not answer.
    #[error("cannot reach Docker at {address}: {reason}")]
    Unreachable { address: String, reason: String },
    /// The image is neither here nor at its registry.
    #[error("the image {image} is not on this machine and cannot be pulled: {reason}")]
    NotFound { image: String, reason: String },
    /// A build failed. `log` is the end of its output, with a line break before each line.
    #[error("build {image}: {reason}{log}")]
    Build { image: String, reason: String, log: String },
    /// Docker refused another call.
    #[error("{doing}: {reason}")]
    Engine { doing: String, reason: String },
    /// A push failed.
    #[error("push {image}: {reason}")]
    Push { image: String, reason: String },
    /// The login that `docker login` stored cannot be read.
    #[error("read the login for {server}: {reason}")]
    Login { server: String, reason: String },
    /// The variable names no tool that loads images.
    #[error("MUSTER_LOAD: invalid tool \"{0}\": use minikube, kind or k3d")]
    Loader(String),
    /// The cluster's tool is not on the PATH.
    #[error("load {image}: {command} could not be started")]
    NoLoader { image: String, command: String, source: io::Error },
    /// The cluster's tool failed. `outcome` says how, with the end of its output.
    #[error("load {image}: {command} {outcome}")]
    Load { image: String, command: String, outcome: String },
    /// The user pressed Ctrl-C.
    #[error("interrupted: nothing was submitted")]
    Interrupted,
    /// The system gives no signals.
    #[error("listen for signals")]
    Signals(#[source] io::Error),
}

impl ImageError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            // A build cannot give a name with a digest.
            Self::NotFound { image, .. } if image.contains('@') => "check the name",
            Self::NotFound { image, .. } => {
                return Some(format!("build it here, docker build -t {image} FOLDER, or check the name"));
            }
            Self::Build { image, reason, .. } if reason.to_lowercase().contains("buildkit") => {
                return Some(format!("build it yourself: docker build -t {image} . ; then give --image {image}"));
            }
            Self::Loader(_) => "unset MUSTER_LOAD, or set it to minikube, kind or k3d",
            Self::NoLoader { .. } => "install it, or give --push REGISTRY",
            Self::Master(_) | Self::NoAgent(_) => {
                "make build puts an agent beside the client; or give --agent-binary PATH"
            }
            Self::NoImage(_) => "give --image REF, or put a Dockerfile beside exec.py",
            Self::NoName { .. } => "give a shorter --push, or another --image",
            Self::AgentUnfit { .. } => "make build makes a static agent; --agent-binary PATH names it",
            Self::AgentForeign { .. } => {
                "give an agent for that processor with --agent-binary PATH, or another --image"
            }
            Self::NoScript { .. } => "add WORKDIR and COPY exec.py ./ to its Dockerfile",
            Self::NoPython { .. } => "start its Dockerfile FROM an image that has Python, or set ENV PATH in it",
            Self::Root(_) | Self::UserByName { .. } => {
                "set a numeric, non-zero USER at the end of its Dockerfile, such as USER 1000, or give --allow-root"
            }
            Self::NothingToPull(_) => "give --push REGISTRY, or leave out --image-pull-policy",
            Self::DockerHost { .. } | Self::NoDockerContext { .. } => DOCKER_HINT,
            Self::Unreachable { .. } => {
                return Some(format!("is Docker running, and do you have the right to use it? {DOCKER_HINT}"));
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
    fn a_build_that_needs_buildkit_is_left_to_the_user() {
        let build = |reason: &str| {
            let (image, reason, log) = ("muster-digits".to_owned(), reason.to_owned(), String::new());
            ImageError::Build { image, reason, log }
        };
        let expected = "build it yourself: docker build -t muster-digits . ; then give --image muster-digits";
        assert_eq!(hint(&build("the --mount option requires BuildKit")), expected);
        assert_eq!(build("pip returned 1").hint(), None);
    }

    #[test]
    fn an_image_is_to_be_built_only_by_a_name_that_a_build_can_give() {
        let nowhere = |image: &str| ImageError::NotFound { image: image.to_owned(), reason: String::new() };
        assert_eq!(hint(&nowhere("digits")), "build it here, docker build -t digits FOLDER, or check the name");
        assert_eq!(hint(&nowhere("digits@sha256:0")), "check the name");
    }

    #[test]
    fn who_finds_no_engine_is_told_where_others_are() {
        let unreachable = ImageError::Unreachable { address: String::new(), reason: String::new() };
        let absent = ImageError::NoDockerContext { context: String::new(), store: PathBuf::new() };
        for error in [unreachable, absent] {
            assert!(hint(&error).contains("docker context use"), "{}", hint(&error));
        }
    }
}
