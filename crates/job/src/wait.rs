//! The kinds of reasons why a replica has no pod, why its pod has no node or no address, or why its agent is not ready yet.

use std::collections::BTreeSet;
use std::fmt;

use protocol::code::CodeId;

/// Resources by their names in pods, such as `cpu` or `nvidia.com/gpu`. `pods` is the number of pods.
pub type Resources = BTreeSet<String>;

/// Why a replica is not ready yet. The text is a part of a sentence for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// No node has room for the pod.
    NoRoom {
        /// The resources that are short.
        lacking: Resources,
        /// The reason, in the scheduler's words.
        reason: String,
    },
    /// A quota has no room for the pod, so the pod does not exist.
    Quota {
        /// The resources that are short.
        lacking: Resources,
        /// The reason, in the API server's words.
        reason: String,
    },
    /// Another program holds the pod back, and the scheduler does not consider the pod yet.
    Gated(String),
    /// The pod has a node, which prepares this image and the pod's volumes. Usually this takes a moment.
    Preparing {
        /// The image of the container that the pod waits for.
        image: String,
    },
    /// Nobody has the code that the replica's agent needs.
    Code {
        /// The code.
        id: CodeId,
        /// The reason, with the way out.
        reason: String,
    },
    /// Any other reason. Other pods that end do not change it.
    Other(String),
}

impl Wait {
    /// Whether something keeps the replica from being ready soon. A node that prepares the pod does not.
    pub fn is_obstacle(&self) -> bool {
        !matches!(self, Self::Preparing { .. })
    }

    /// The resources that would be free if other pods ended.
    pub fn lacking(&self) -> Option<&Resources> {
        match self {
            Self::NoRoom { lacking, .. } | Self::Quota { lacking, .. } => Some(lacking),
            Self::Gated(_) | Self::Preparing { .. } | Self::Code { .. } | Self::Other(_) => None,
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom { reason, .. }
            | Self::Quota { reason, .. }
            | Self::Gated(reason)
            | Self::Code { reason, .. }
            | Self::Other(reason) => f.write_str(reason),
            Self::Preparing { image } => write!(f, "the node still prepares the pod (image {image}, volumes, network)"),
        }
    }
}
