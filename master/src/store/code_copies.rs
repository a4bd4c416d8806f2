//! Copies of the code that jobs bring, beside the records. A master that has lost its disk reads the code from there.

use std::fmt;

use async_trait::async_trait;
use protocol::code::CodeId;

use super::{StoreError, Version};

/// Maximum bytes of a copy. A ConfigMap has at most 1 MiB with all its fields (core/v1 `MaxSecretSize`).
pub const CODE_COPY_BYTES_MAX: usize = 900 * 1024;
/// Maximum bytes of all copies together. They are in the API server's database, whose default limit is 2 GiB.
pub const CODE_COPIES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A copy, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeCopy {
    /// The code.
    pub id: CodeId,
    /// The unique id of the copy. A later copy of the same code has another uid.
    pub uid: String,
    /// The version. Each call of [`CodeCopies::keep`] changes it.
    pub version: Version,
}

/// The outcome of [`CodeCopies::keep`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyOutcome {
    /// The store had no copy, and has one now.
    New(CodeCopy),
    /// The store already had this copy.
    Renewed(CodeCopy),
    /// The store has no copy.
    Not(Unkept),
}

/// Why a store keeps no copy of some code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unkept {
    /// The store refuses the copy, with this message. Usually, a quota has no room.
    Refused(String),
    /// All copies together would have more than [`CODE_COPIES_BYTES_MAX`] bytes.
    Full,
    /// Someone else has created an object with this name, which the master does not change.
    Foreign(String),
}

impl fmt::Display for Unkept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(message) => f.write_str(message),
            Self::Full => write!(f, "the code of all jobs in the API would exceed {} MiB", CODE_COPIES_BYTES_MAX >> 20),
            Self::Foreign(name) => write!(f, "the ConfigMap {name} exists, and this master did not create it"),
        }
    }
}

/// Copies of code, by the ids of the code. The store does not check that a new content matches its id.
#[async_trait]
pub trait CodeCopies: Send + Sync {
    /// Keeps a copy with this content, which has at most [`CODE_COPY_BYTES_MAX`] bytes. An existing copy whose content
    /// differs stays if it is a copy of the same code, see [`is_copy_of`](crate::code::is_copy_of). Otherwise it is
    /// replaced.
    async fn keep(&self, id: CodeId, content: &[u8]) -> Result<CopyOutcome, StoreError>;

    /// Reads the content of a copy. `None` if there is no copy.
    async fn read(&self, id: CodeId) -> Result<Option<Vec<u8>>, StoreError>;

    /// Lists all copies, in the order of their ids.
    async fn copies(&self) -> Result<Vec<CodeCopy>, StoreError>;

    /// Removes a copy. Changes nothing if the copy has another uid or version by now, or does not exist.
    async fn remove(&self, copy: &CodeCopy) -> Result<(), StoreError>;
}
