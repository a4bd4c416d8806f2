//! Code that the agent has, as a master reads it back: the manifest's JSON, a line feed, and all blobs. The size of the
//! code does not matter, because files are written piece by piece.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use placed_code::has_content;
use protocol::code::{CodeFile, Manifest, Sha256};

/// The files of some code. Another delivery may move or remove them, and a script may change them.
#[derive(Debug)]
pub struct HeldFiles {
    manifest: Arc<Manifest>,
    /// A file for each blob, with the blob's length in bytes.
    blobs: BTreeMap<Sha256, (PathBuf, u64)>,
}

impl HeldFiles {
    /// `path` returns where a file of the manifest is, from its index.
    pub(super) fn new(manifest: Arc<Manifest>, path: impl Fn(usize, &CodeFile) -> PathBuf) -> Self {
        let files = manifest.files().iter().enumerate();
        let blobs = files.map(|(index, file)| (file.sha256, (path(index, file), file.size))).collect();
        Self { manifest, blobs }
    }

    /// Whether all files still have their contents. Reads all of them.
    pub fn is_intact(&self) -> bool {
        self.blobs.iter().all(|(blob, (path, size))| has_content(path, *blob, *size))
    }

    /// Writes the manifest and all blobs.
    ///
    /// # Errors
    /// A file cannot be read, or `to` refuses the bytes.
    pub fn write_into(&self, to: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, self.manifest.as_ref())?;
        to.write_all(b"\n")?;
        for (blob, (path, _)) in &self.blobs {
            to.write_all(blob.as_bytes())?;
            io::copy(&mut File::open(path)?, to)?;
        }
        to.flush()
    }
}
