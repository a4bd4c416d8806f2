//! Everything that can keep a training image from the pods, and what its user can do about it.

use std::io;
use std::path::PathBuf;

use protocol::image::ImageRef;

use super::elf::{ElfFault, Machine};
use crate::master_client::MasterError;
use crate::request::SCRIPT;

/// How to choose another engine.
const DOCKER_HINT: &str = "with minikube: eval $(minikube docker-env); else: unset DOCKER_HOST and DOCKER_CONTEXT, and \
    docker context use one that docker context ls shows";

/// Why there is no image for pods to run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// Neither a flag nor a Dockerfile says what to run.
    #[error("no image to run: --image is not given, and there is no Dockerfile in {}", .0.display())]
    NoImage(PathBuf),
    /// The image has no name at the registry.
    #[error("{image} has no valid name below --push {registry}")]
    NoName {
        /// The image that pods run.
        image: ImageRef,
        /// The registry.
        registry: String,
    },
    /// `--agent-binary` cannot be read.
    #[error("--agent-binary: read {}", path.display())]
    AgentFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What was given or fetched as the agent would not start.
    #[error("the agent {origin} {fault}")]
    AgentUnfit {
        /// Where it is from.
        origin: String,
        /// What is wrong with it.
        fault: ElfFault,
    },
    /// The agent is for other machines than the image.
    #[error("the agent {origin} is for {agent}, and the image {image} for {wanted}")]
    AgentForeign {
        /// Where it is from.
        origin: String,
        /// What it is for.
        agent: Machine,
        /// The image.
        image: String,
        /// What the image is for.
        wanted: Machine,
    },
    /// There is no agent beside the client, and no master to ask.
    #[error("no agent to put into the image: {0}")]
    NoAgent(String),
    /// The master did not give its agent.
    #[error("fetch the agent from the master")]
    Master(#[from] MasterError),
    /// Nothing to run.
    #[error("the image {image} has no {SCRIPT} in its working directory {folder}")]
    NoScript {
        /// The image.
        image: String,
        /// Its working directory.
        folder: String,
    },
    /// Nothing to run it with.
    #[error("the image {image} has neither python nor python3 on its PATH ({path})")]
    NoPython {
        /// The image.
        image: String,
        /// The folders.
        path: String,
    },
    /// Its user is root, or none is said.
    #[error("the image {0} runs as root")]
    Root(String),
    /// Kubernetes does not know who its user is.
    #[error("the image {image} runs as the user \"{user}\", and Kubernetes cannot tell a name from root")]
    UserByName {
        /// The image.
        image: String,
        /// Its user.
        user: String,
    },
    /// A node is to ask for what only this machine has.
    #[error("--image-pull-policy Always: no registry has {0} with the agent in it, so no node could pull it")]
    NothingToPull(String),
    /// A folder cannot be sent to Docker.
    #[error("read {} for the build", path.display())]
    Context {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A pattern of the .dockerignore.
    #[error(".dockerignore: \"{0}\" is not a pattern")]
    Ignore(String),
    /// The address of Docker is none.
    #[error(
        "{named_by}: \"{address}\" is none of unix://PATH, tcp://HOST:PORT, http://HOST:PORT and https://HOST:PORT"
    )]
    DockerHost {
        /// The variable or the context.
        named_by: String,
        /// The address.
        address: String,
    },
    /// The context that is to say where Docker is does not exist.
    #[error("there is no Docker context \"{context}\" in {}", store.display())]
    NoDockerContext {
        /// Its name.
        context: String,
        /// The folder of all contexts.
        store: PathBuf,
    },
    /// What the docker command keeps cannot be understood.
    #[error("read {}", path.display())]
    DockerFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers there.
    #[error("Docker cannot be reached at {address}: {reason}")]
    Unreachable {
        /// The address.
        address: String,
        /// In the system's words.
        reason: String,
    },
    /// Neither here nor at a registry.
    #[error("there is no image {image} here, and it cannot be pulled: {reason}")]
    NotFound {
        /// The image.
        image: String,
        /// In Docker's words.
        reason: String,
    },
    /// A build ended early.
    #[error("build {image}: {reason}{log}")]
    Build {
        /// The image.
        image: String,
        /// In Docker's words.
        reason: String,
        /// The end of what it printed, on lines of its own.
        log: String,
    },
    /// Docker refused something else.
    #[error("{doing}: {reason}")]
    Engine {
        /// What was to be done.
        doing: String,
        /// In Docker's words.
        reason: String,
    },
    /// A registry refused.
    #[error("push {image}: {reason}")]
    Push {
        /// The image, with its registry.
        image: String,
        /// In Docker's words.
        reason: String,
    },
    /// What `docker login` left cannot be used.
    #[error("read the login for {server}: {reason}")]
    Login {
        /// The registry.
        server: String,
        /// Why.
        reason: String,
    },
    /// The variable names no tool that loads images.
    #[error("MUSTER_LOAD: \"{0}\" is none of minikube, kind and k3d")]
    Loader(String),
    /// A local cluster's tool is not on the PATH.
    #[error("load {image}: {command} could not be started")]
    NoLoader {
        /// The image.
        image: String,
        /// The command.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// A local cluster's tool did not load the image.
    #[error("load {image}: {command} {outcome}")]
    Load {
        /// The image.
        image: String,
        /// The command.
        command: String,
        /// How it went, with what it printed.
        outcome: String,
    },
    /// The user left.
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
            // Nothing that is built here can be named by a digest.
            Self::NotFound { image, .. } if image.contains('@') => "check the name",
            Self::NotFound { image, .. } => {
                return Some(format!("build it here, docker build -t {image} FOLDER, or check the name"));
            }
            Self::Build { image, reason, .. } if reason.to_lowercase().contains("buildkit") => {
                return Some(format!("build it yourself, docker build -t {image} ., and give --image {image}"));
            }
            Self::Loader(_) => "unset MUSTER_LOAD, or name minikube, kind or k3d",
            Self::NoLoader { .. } => "install it, or give --push REGISTRY",
            Self::Master(_) | Self::NoAgent(_) => {
                "make build puts an agent beside the client; or give --agent-binary PATH"
            }
            Self::NoImage(_) => "give --image REF, or put a Dockerfile beside exec.py",
            Self::NoName { .. } => "give a shorter --push, or another --image",
            Self::AgentUnfit { .. } => "make build makes one that fits; --agent-binary PATH names it",
            Self::AgentForeign { .. } => "give one that fits by --agent-binary PATH, or another --image",
            Self::NoScript { .. } => "in its Dockerfile: WORKDIR, and COPY exec.py to it",
            Self::NoPython { .. } => "begin its Dockerfile with an image that has python, or set ENV PATH in it",
            Self::Root(_) | Self::UserByName { .. } => {
                "end its Dockerfile with USER 1000, or another number that is not 0; or give --allow-root"
            }
            Self::NothingToPull(_) => "give --push REGISTRY, or leave the policy out",
            Self::DockerHost { .. } | Self::NoDockerContext { .. } => DOCKER_HINT,
            Self::Unreachable { .. } => return Some(format!("is Docker running, and may you use it? {DOCKER_HINT}")),
            Self::Push { .. } => {
                "does Docker reach the registry, and does it know you? docker login HOST notes who you are"
            }
            Self::Login { .. } => "docker login HOST notes it anew",
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
        let expected = "build it yourself, docker build -t muster-digits ., and give --image muster-digits";
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
