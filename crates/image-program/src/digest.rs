//! The digest by which a registry names a document (pure).

use std::fmt;

use protocol::code::Sha256;

use super::LookUpError;

/// The SHA-256 of a document. As text: `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Digest(Sha256);

impl Digest {
    /// # Errors
    /// The text has another form. Names at most 80 characters of it, because the text may come from a registry.
    pub(crate) fn read(text: &str) -> Result<Self, LookUpError> {
        let digest = text.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
        digest.map(Self).ok_or_else(|| {
            let text: String = text.chars().filter(char::is_ascii_graphic).take(80).collect();
            LookUpError::Unusable(format!("the digest \"{text}\" is not supported: use sha256"))
        })
    }

    /// Whether this is the digest of these bytes.
    pub(crate) fn is_of(&self, bytes: &[u8]) -> bool {
        Sha256::of(bytes) == self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}
