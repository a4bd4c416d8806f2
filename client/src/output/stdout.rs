//! The process's stdout, and what happens if it cannot be written.

use std::io::{self, Write};

use super::notes::Notes;
use super::progress::ProgressLines;

/// Stdout. On a terminal, data is written above the progress, because a redraw erases text inside the progress.
pub(super) struct Stdout {
    pub(super) progress: Option<ProgressLines>,
    pub(super) loss: WriteLoss,
}

/// What happens if data cannot be written, for example because the disk is full.
pub(super) enum WriteLoss {
    /// The write fails.
    Fails,
    /// The loss is reported here, and nothing more is written. A closed stdout is still an error.
    IsReported(Notes),
    /// The loss was reported.
    WasReported,
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = || {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        };
        if matches!(self.loss, WriteLoss::WasReported) {
            return Ok(bytes.len());
        }
        let written = self.progress.as_ref().map_or_else(write, |progress| progress.suspend(write));
        match (written, &self.loss) {
            (Err(error), WriteLoss::IsReported(notes)) if error.kind() != io::ErrorKind::BrokenPipe => {
                notes.say(&format!("could not write to stdout: {error}; the job goes on, and its output is not shown"));
                self.loss = WriteLoss::WasReported;
                Ok(bytes.len())
            }
            (written, _) => written.map(|()| bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
