//! Why a pod or its network policy could not be created, and whether a retry may succeed.

use job::wait::Resources;
use launchers::template::{Note, listed};

use super::room::lacking_in_quota;
use crate::backend::BackendError;
use crate::kube::api::ApiFailure;

/// Why a job without an image cannot run.
pub(super) const NO_IMAGE: &str = "image is missing: this master runs pods in Kubernetes, and every pod needs an image";

/// Why this master cannot run a job whose pods need a copy of the agent.
pub(super) const NO_AGENT_IMAGE: &str = "the agent must be copied into the job's pods, and this master has no image with the agent: start the \
                                         master with --agent-image, such as --agent-image muster-master:latest";

/// Why a pod could not be created.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreateError {
    #[error(transparent)]
    Api(ApiFailure),
    #[error("another pod has this name: delete that pod, or give the job another name")]
    NameTaken,
    #[error("{NO_AGENT_IMAGE}")]
    NoAgentImage,
    #[error("the pod's template is refused: {}", listed(.0))]
    Template(Vec<Note>),
}

impl CreateError {
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Self::Api(failure) => ErrorKind::of(failure),
            Self::NameTaken => ErrorKind::NameTaken,
            Self::NoAgentImage | Self::Template(_) => ErrorKind::Final,
        }
    }

    pub(super) fn is_passing(&self) -> bool {
        self.kind() == ErrorKind::Passing
    }
}

/// Whether a retry of a failed request may succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ErrorKind {
    /// A retry succeeds when the API works again.
    Passing,
    /// A retry succeeds when the quota has room for these resources.
    OverQuota(Resources),
    /// A retry succeeds when the other pod is deleted.
    NameTaken,
    /// The same request fails again.
    Final,
}

impl ErrorKind {
    pub(super) fn of(failure: &ApiFailure) -> Self {
        match failure {
            failure if failure.is_passing() => Self::Passing,
            failure if failure.says_over_quota() => Self::OverQuota(lacking_in_quota(&failure.to_string())),
            ApiFailure::Refused { .. } | ApiFailure::Unreachable(_) | ApiFailure::Silent => Self::Final,
        }
    }

    pub(super) fn wrap(self, error: BackendError) -> BackendError {
        match self {
            Self::Passing => BackendError::Unavailable(Box::new(error)),
            Self::OverQuota(lacking) => BackendError::OverQuota { lacking, source: Box::new(error) },
            Self::NameTaken => BackendError::NameTaken(Box::new(error)),
            Self::Final => error,
        }
    }
}
