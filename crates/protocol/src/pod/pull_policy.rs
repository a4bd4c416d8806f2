//! When a node pulls an image.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, bad};
use crate::as_text::names;

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

names!(PullPolicy {
    IfNotPresent => "IfNotPresent",
    Always => "Always",
    Never => "Never",
});

impl FromStr for PullPolicy {
    type Err = BadValue;

    /// Case does not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str().eq_ignore_ascii_case(text));
        known.ok_or_else(|| bad(text, "pull policy", "use IfNotPresent, Always or Never"))
    }
}
