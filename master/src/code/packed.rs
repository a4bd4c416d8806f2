//! Code as one stream: the manifest's JSON, a line feed, and all blobs. An agent sends code back in this form, and a copy
//! of code beside the records is the same stream in gzip.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use protocol::code::{BlobPart, BlobReader, CodeId, MANIFEST_BYTES_MAX, Manifest};

use super::{CodeError, CodeStore, Piece};

/// Bytes that are decompressed at a time.
const PIECE_BYTES: u64 = 64 * 1024;

/// Why code that arrived as one stream was not stored.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The stream does not begin with a manifest, or a copy is not compressed.
    #[error("it does not begin with a manifest")]
    NoManifest(#[source] io::Error),
    /// The stream lacks blobs.
    #[error("it lacks {0} files")]
    Incomplete(usize),
    /// The store refuses the content: its hashes are wrong, or the disk has no room.
    #[error(transparent)]
    Code(#[from] CodeError),
}

impl CodeStore {
    /// Packs this code. `None` if the result would have more than `most` bytes.
    ///
    /// # Errors
    /// [`CodeError::Missing`], [`CodeError::Disk`].
    pub fn pack(&self, id: CodeId, most: usize) -> Result<Option<Vec<u8>>, CodeError> {
        let manifest = self.manifest(id).ok_or(CodeError::Missing(id))?;
        let mut gzip = GzEncoder::new(Limited { bytes: vec![], most }, Compression::default());
        match self.write_into(&mut gzip, id, &manifest).and_then(|()| Ok(gzip.finish()?)) {
            Ok(packed) => Ok(Some(packed.bytes)),
            Err(CodeError::Disk(error)) if error.kind() == ErrorKind::FileTooLarge => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write_into(&self, packed: &mut impl Write, id: CodeId, manifest: &Manifest) -> Result<(), CodeError> {
        serde_json::to_writer(&mut *packed, manifest).map_err(io::Error::from)?;
        packed.write_all(b"\n")?;
        for blob in manifest.blobs().into_keys() {
            let content = self.blob(blob)?.ok_or(CodeError::Missing(id))?;
            packed.write_all(blob.as_bytes())?;
            packed.write_all(&content)?;
        }
        Ok(())
    }

    /// Stores code that [`Self::pack`] has packed. The content may come from anyone: it is stored only if all hashes
    /// match.
    pub fn unpack(&self, id: CodeId, packed: &[u8]) -> Result<(), UnpackError> {
        self.take_in(id, GzDecoder::new(packed))
    }

    /// Stores code that arrives as one stream. The stream may come from anyone, as for [`Self::unpack`].
    pub(super) fn take_in(&self, id: CodeId, content: impl Read) -> Result<(), UnpackError> {
        let mut content = BufReader::new(content);
        let manifest = manifest_of(&mut content).map_err(UnpackError::NoManifest)?;
        self.offer(id, &manifest)?;
        match self.receive(id, || next_piece(&mut content))?.len() {
            0 => Ok(()),
            missing => Err(UnpackError::Incomplete(missing)),
        }
    }
}

/// Whether this is a copy of the code. Compares the content, because different versions of gzip pack the same code into
/// different bytes.
pub fn is_copy_of(id: CodeId, packed: &[u8]) -> bool {
    unread_blobs(id, packed) == Some(0)
}

/// Checks the content of a copy. Returns how many blobs the copy lacks; `None` if the copy is wrong.
fn unread_blobs(id: CodeId, packed: &[u8]) -> Option<usize> {
    let mut content = BufReader::new(GzDecoder::new(packed));
    let manifest = manifest_of(&mut content).ok().filter(|manifest| manifest.id() == id)?;
    let (mut reader, mut left) = (BlobReader::new(&manifest), manifest.blobs().len());
    while let Piece::Bytes(piece) = next_piece(&mut content)? {
        let mut input = piece.as_ref();
        while let Some(part) = reader.next(&mut input).ok()? {
            left -= usize::from(matches!(part, BlobPart::End(_)));
        }
    }
    reader.finish().ok().map(|()| left)
}

fn manifest_of(content: &mut impl BufRead) -> io::Result<Manifest> {
    let mut line = vec![];
    // The manifest, and the line feed.
    content.by_ref().take(MANIFEST_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

fn next_piece(content: &mut impl Read) -> Option<Piece> {
    let mut piece = vec![];
    let read = content.by_ref().take(PIECE_BYTES).read_to_end(&mut piece).ok()?;
    Some(if read == 0 { Piece::End } else { Piece::Bytes(Bytes::from(piece)) })
}

/// A limited number of bytes in memory. More bytes are refused with [`ErrorKind::FileTooLarge`].
struct Limited {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
