//! The stream that carries blobs: for each blob, the 32 bytes of its SHA-256, then its content. The manifest contains
//! the lengths. [`BlobReader`] checks the stream and does no I/O.

use std::collections::BTreeMap;

use super::{Hasher, Manifest, Sha256};
use crate::taken;

/// Why a stream of blobs is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// The manifest does not contain this blob, or the stream has already carried it.
    #[error("blob {0} is not in the manifest, or was sent before")]
    Unexpected(Sha256),
    /// The content does not match its SHA-256.
    #[error("the content of blob {0} has another SHA-256")]
    WrongContent(Sha256),
    /// The stream ended within a blob, or within the SHA-256 before a blob.
    #[error("the stream ends within a blob")]
    Truncated,
}

/// A part of the stream.
#[derive(Debug, PartialEq, Eq)]
pub enum BlobPart<'a> {
    /// A blob begins.
    Begin(Sha256),
    /// The next bytes of the blob that has begun.
    Content(&'a [u8]),
    /// The blob is complete, and its content matches its SHA-256.
    End(Sha256),
}

/// Reads a stream of blobs of one manifest, each at most once and in any order.
#[derive(Debug)]
pub struct BlobReader {
    /// The blobs that may still come, with their lengths.
    expected: BTreeMap<Sha256, u64>,
    at: At,
}

/// The place in the stream.
#[derive(Debug)]
enum At {
    /// In the SHA-256 before a blob. Contains the bytes of the SHA-256 that have arrived.
    Name(Vec<u8>),
    /// In the content of a blob. `left` bytes have not arrived.
    Content { blob: Sha256, left: u64, hasher: Hasher },
}

impl BlobReader {
    /// Reads blobs of this manifest.
    pub fn new(manifest: &Manifest) -> Self {
        Self { expected: manifest.blobs(), at: At::Name(Vec::new()) }
    }

    /// Takes the next part from the beginning of `input`, and shortens `input`. Returns `None` if more input is needed.
    ///
    /// # Errors
    /// [`BlobError`]. The reader must not be used after an error.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<BlobPart<'a>>, BlobError> {
        match &mut self.at {
            At::Name(name) => {
                name.extend_from_slice(taken(input, Sha256::BYTES - name.len()));
                let Ok(name) = <[u8; Sha256::BYTES]>::try_from(name.as_slice()) else { return Ok(None) };
                let blob = Sha256(name);
                let left = self.expected.remove(&blob).ok_or(BlobError::Unexpected(blob))?;
                self.at = At::Content { blob, left, hasher: Hasher::default() };
                Ok(Some(BlobPart::Begin(blob)))
            }
            At::Content { blob, left: 0, hasher } => {
                let blob = *blob;
                if std::mem::take(hasher).finish() != blob {
                    return Err(BlobError::WrongContent(blob));
                }
                self.at = At::Name(Vec::new());
                Ok(Some(BlobPart::End(blob)))
            }
            At::Content { .. } if input.is_empty() => Ok(None),
            At::Content { blob: _, left, hasher } => {
                let content = taken(input, usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= content.len() as u64;
                hasher.update(content);
                Ok(Some(BlobPart::Content(content)))
            }
        }
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// [`BlobError::Truncated`].
    pub fn finish(self) -> Result<(), BlobError> {
        match self.at {
            At::Name(name) if name.is_empty() => Ok(()),
            At::Name(_) | At::Content { .. } => Err(BlobError::Truncated),
        }
    }
}
