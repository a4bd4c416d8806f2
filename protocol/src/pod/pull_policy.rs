//! When a node pulls an image.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, bad};

/// When a node pulls an image from a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PullPolicy {
    /// When the node does not have the image.
    IfNotPresent,
    /// Before every start of a pod.
    Always,
    /// Never: the node must already have the image.
    Never,
}

impl PullPolicy {
    const ALL: [Self; 3] = [Self::IfNotPresent, Self::Always, Self::Never];

    /// The policy's name in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

impl FromStr for PullPolicy {
    type Err = BadValue;

    /// Case does not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str().eq_ignore_ascii_case(text));
        known.ok_or_else(|| bad(text, "pull policy", "use IfNotPresent, Always or Never"))
    }
}
