//! The UNIX user of a pod's processes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, bad};
use crate::as_text::serde_as_string;

/// The UNIX user of a pod's processes: `image`, `UID` or `UID:GID`. UID 0, root, is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RunAs {
    /// The image's own user.
    Image,
    /// A user by its number.
    User {
        /// The user's id, 1 or more.
        uid: u32,
        /// The id of the user's group, by default equal to `uid`.
        gid: u32,
    },
}

impl FromStr for RunAs {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "image" {
            return Ok(Self::Image);
        }
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        // The Kubernetes API accepts ids up to i32::MAX.
        let id = |text: &str| {
            let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
            text.parse().ok().filter(|id| is_plain && i32::try_from(*id).is_ok())
        };
        match (id(uid), id(gid)) {
            (Some(uid @ 1..), Some(gid)) => Ok(Self::User { uid, gid }),
            (_, _) => Err(bad(text, "user", "use image, UID or UID:GID, with a UID from 1 on, such as 1000")),
        }
    }
}

impl fmt::Display for RunAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image => f.write_str("image"),
            Self::User { uid, gid } => write!(f, "{uid}:{gid}"),
        }
    }
}

serde_as_string!(RunAs);
