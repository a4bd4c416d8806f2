//! Where a job came from, as reported by the client that submits the job. Only people use this information: it does not
//! change the job.

use serde::{Deserialize, Deserializer, Serialize};

/// Maximum bytes of each text.
pub const ABOUT_BYTES: usize = 512;

/// Where a job came from. Two requests that differ only in this value ask for the same job. A text of more than
/// [`ABOUT_BYTES`] is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct About {
    /// What runs: the path of the script on the machine of the user, or the name of the image without tag and digest.
    /// Jobs with the same source count as runs of the same code, even if they come from two machines.
    #[serde(deserialize_with = "short", skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The commit of the script's folder, as `git describe --always --dirty` prints it: `-dirty` means that files that git
    /// tracks have changed.
    #[serde(deserialize_with = "short", skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

fn short<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.filter(|text| text.len() <= ABOUT_BYTES))
}
