//! The file to which the Python processes of one run write their stacks.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};

/// A file in memory. A write to it never waits, so a signal handler can write to it at any time. A pipe that nobody
/// reads would stop the training. Clones are the same file.
#[derive(Debug, Clone)]
pub(crate) struct StacksFile(Arc<File>);

impl StacksFile {
    /// An empty file. Each write appends to the file, even after [`Self::clear`].
    pub(crate) fn create() -> io::Result<Self> {
        let file = memfd_create("muster-stacks", MemfdFlags::CLOEXEC)?;
        fcntl_setfl(&file, OFlags::APPEND)?;
        Ok(Self(Arc::new(file.into())))
    }

    /// A descriptor for the processes of the run.
    pub(crate) fn for_run(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    pub(super) fn clear(&self) -> io::Result<()> {
        self.0.set_len(0)
    }

    pub(super) fn length(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.len())
    }

    /// The beginning of the file, at most `limit` bytes, with invalid UTF-8 replaced.
    pub(super) fn text(&self, limit: usize) -> String {
        let mut bytes = Vec::new();
        let from_start = FromStart { file: &self.0, offset: 0 };
        // After an error, the text that was read before is still useful.
        let _ = from_start.take(limit as u64).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Reads a file from its start. The offset of the file itself belongs to all its descriptors.
struct FromStart<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}
