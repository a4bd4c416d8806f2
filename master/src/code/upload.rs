//! One upload of blobs. The upload writes the blobs to a folder of its own. When the upload is dropped, the folder is
//! removed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;
use protocol::code::{BlobPart, BlobReader, Manifest, Sha256};

use super::CodeError;
use super::disk::Disk;
use crate::host::files::sync;

/// A piece of an upload.
#[derive(Debug)]
pub enum Piece {
    /// The next bytes.
    Bytes(Bytes),
    /// The upload is complete.
    End,
}

/// Verified blobs on the disk, in a folder of their own.
#[derive(Debug)]
pub(super) struct Upload {
    folder: PathBuf,
    blobs: BTreeMap<Sha256, u64>,
}

impl Disk {
    /// Receives an upload. `next` returns `None` if the client stopped sending before [`Piece::End`].
    pub(super) fn upload(
        &self,
        manifest: &Manifest,
        mut next: impl FnMut() -> Option<Piece>,
    ) -> Result<Upload, CodeError> {
        let folder = self.uploads.join(uuid::Uuid::new_v4().to_string());
        fs::create_dir(&folder)?;
        let mut upload = Upload { folder, blobs: BTreeMap::new() };
        let (mut reader, mut file) = (BlobReader::new(manifest), None);
        loop {
            let piece = match next() {
                Some(Piece::Bytes(piece)) => piece,
                Some(Piece::End) => break,
                None => return Err(CodeError::Aborted),
            };
            let mut input = piece.as_ref();
            while let Some(part) = reader.next(&mut input)? {
                upload.take(&part, &mut file)?;
            }
        }
        reader.finish()?;
        let files: Vec<_> = upload.blobs.keys().map(|blob| upload.path(*blob)).collect();
        sync(&files)?;
        Ok(upload)
    }
}

impl Upload {
    /// The blobs, with their sizes.
    pub(super) fn blobs(&self) -> &BTreeMap<Sha256, u64> {
        &self.blobs
    }

    /// Where the blob was written.
    pub(super) fn path(&self, blob: Sha256) -> PathBuf {
        self.folder.join(blob.to_string())
    }

    fn take(&mut self, part: &BlobPart<'_>, file: &mut Option<File>) -> io::Result<()> {
        match part {
            BlobPart::Begin(blob) => *file = Some(File::create_new(self.path(*blob))?),
            BlobPart::Content(content) => {
                let file = file.as_mut().expect("a blob begins before its content");
                file.write_all(content)?;
            }
            BlobPart::End(blob) => {
                let file = file.take().expect("a blob begins before its end");
                self.blobs.insert(*blob, file.metadata()?.len());
            }
        }
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // If this fails, the next start of the master removes the folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
