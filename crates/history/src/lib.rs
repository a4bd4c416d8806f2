//! The files of jobs that have ended: a folder with one file for each job. The folder has at most [`ENTRIES_MAX`]
//! files, which have at most [`BYTES_MAX`] together. Only their owner can read the files.
//!
//! A file's name is `ENDED-NAME.UID.json`, where `ENDED` is the end of the job in milliseconds, so that the names sort by
//! age. The first line is a header with the job's summary, and the second line is the job. A file is written under
//! another name first, so a file with this name is complete, unless a disk has lost a part of it.

mod file;

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::history::{PastJob, PastJobs, Skipped};
use protocol::ids::UnixMillis;
use protocol::progress::JobSeries;
use protocol::view::JobView;

use self::file::Unread;

/// Maximum number of jobs.
pub const ENTRIES_MAX: usize = 200;
/// Maximum bytes of all files.
pub const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Above this size, a job is kept without its series, so that one job does not remove all others.
const JOB_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The prefix of a file that is being written.
const UNFINISHED: &str = ".unfinished-";
/// An unfinished file of this age belongs to a program that has died.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);
/// The ending of a complete file.
const ENDING: &str = ".json";
/// Maximum bytes of a uid in a file's name.
const UID_BYTES: usize = 64;

/// A folder with the files of jobs that have ended.
#[derive(Debug, Clone)]
pub struct History {
    folder: PathBuf,
}

/// A file of the folder.
struct HistoryFile {
    name: String,
    bytes: u64,
}

impl History {
    /// The history in this folder. The folder is created when it is needed.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Writes the file of a job that has ended, unless there is one or the history is full of newer jobs. Removes the
    /// oldest files to make room.
    ///
    /// # Errors
    /// Fails if the folder cannot be written, or if the job's uid cannot be a part of a file's name.
    pub fn keep(&self, job: &PastJob) -> io::Result<()> {
        let Some(name) = self.name_for(&job.view)? else { return Ok(()) };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // tempfile creates files that only their owner can read.
        let written = |job: &PastJob| {
            let mut unfinished = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.folder)?;
            file::write(&mut unfinished, job)?;
            Ok::<_, io::Error>(unfinished)
        };
        let mut unfinished = written(job)?;
        if unfinished.as_file().metadata()?.len() > JOB_BYTES_MAX {
            unfinished = written(&PastJob { series: JobSeries::default(), ..job.clone() })?;
        }
        unfinished.persist(self.folder.join(&name))?;
        self.make_room()
    }

    /// Whether [`Self::keep`] would write the file of this job.
    ///
    /// # Errors
    /// Fails if the folder cannot be read, or if the job's uid cannot be a part of a file's name.
    pub fn lacks(&self, view: &JobView) -> io::Result<bool> {
        self.name_for(view).map(|name| name.is_some())
    }

    /// The name of the file to write for this job, if it is to be written.
    fn name_for(&self, view: &JobView) -> io::Result<Option<String>> {
        if !is_uid(&view.uid) {
            let rule = format!("use 1 to {UID_BYTES} letters, digits and hyphens");
            let sentence = format!("the uid \"{}\" cannot be part of a file's name: {rule}", view.uid);
            return Err(io::Error::new(ErrorKind::InvalidInput, sentence));
        }
        let ended = view.times.ended.or(view.times.finished).unwrap_or(UnixMillis(0));
        let name = format!("{:013}-{}.{}{ENDING}", ended.0, view.name, view.uid);
        let entries = self.entries()?;
        let is_too_old = entries.len() >= ENTRIES_MAX && entries.first().is_some_and(|oldest| name < oldest.name);
        let is_there = entries.iter().any(|entry| is_of(&entry.name, &view.uid));
        Ok((!is_too_old && !is_there).then_some(name))
    }

    /// All jobs, the newest first, and the files that cannot be read.
    ///
    /// # Errors
    /// Fails if the folder cannot be read.
    pub fn list(&self) -> io::Result<PastJobs> {
        let mut list = PastJobs::default();
        for HistoryFile { name, .. } in self.entries()?.into_iter().rev() {
            match self.check(&name).and_then(|path| file::summary(&path)) {
                Ok(summary) => list.jobs.push(summary),
                // Another program has just removed the file.
                Err(Unread::Absent) => {}
                Err(unread) => list.skipped.push(Skipped { file: name, reason: unread.to_string() }),
            }
        }
        Ok(list)
    }

    /// The job with this uid. `None` if the history does not have it.
    ///
    /// # Errors
    /// Fails if the folder or the file cannot be read.
    pub fn read(&self, uid: &str) -> io::Result<Option<PastJob>> {
        let entries = self.entries()?;
        let Some(HistoryFile { name, .. }) = entries.iter().find(|entry| is_of(&entry.name, uid)) else {
            return Ok(None);
        };
        match self.check(name).and_then(|path| file::job(&path)) {
            Ok(job) => Ok(Some(job)),
            Err(Unread::Absent) => Ok(None),
            Err(unread) => {
                Err(io::Error::new(ErrorKind::InvalidData, format!("the file {name} of the history {unread}")))
            }
        }
    }

    /// The complete files, the oldest first.
    fn entries(&self) -> io::Result<Vec<HistoryFile>> {
        let found = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
            found => found?,
        };
        let mut entries = vec![];
        for entry in found {
            let entry = entry?;
            // A file that another program has just removed has no metadata.
            let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), entry.metadata()) else { continue };
            if name.ends_with(ENDING) && !name.starts_with('.') {
                entries.push(HistoryFile { name, bytes: metadata.len() });
            } else if name.starts_with(UNFINISHED) && age_of(&metadata) > UNFINISHED_AGE {
                unless_absent(fs::remove_file(entry.path()))?;
            }
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Removes the oldest files until the limits are kept.
    fn make_room(&self) -> io::Result<()> {
        let entries = self.entries()?;
        let (mut count, mut bytes) = (entries.len(), entries.iter().map(|entry| entry.bytes).sum::<u64>());
        for entry in &entries {
            if count <= ENTRIES_MAX && bytes <= BYTES_MAX {
                break;
            }
            unless_absent(fs::remove_file(self.folder.join(&entry.name)))?;
            (count, bytes) = (count - 1, bytes - entry.bytes);
        }
        Ok(())
    }

    /// The path of a file that only its owner can read and change, and whose owner owns the folder.
    fn check(&self, name: &str) -> Result<PathBuf, Unread> {
        let path = self.folder.join(name);
        let owner = |path: &Path| path.symlink_metadata().map(|metadata| (metadata.uid(), metadata));
        let (folder, _) = owner(&self.folder)?;
        let (uid, metadata) = owner(&path)?;
        let is_private = uid == folder && metadata.is_file() && metadata.mode() & 0o077 == 0;
        if is_private { Ok(path) } else { Err(Unread::NotPrivate) }
    }
}

/// Whether a job can have this uid: 1 to 64 letters, digits and hyphens, so that it can be a part of a file's name and of a
/// path.
pub fn is_uid(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=UID_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Whether the file with this name is that of the job with this uid. A uid has no dot.
fn is_of(name: &str, uid: &str) -> bool {
    let stem = name.strip_suffix(ENDING).and_then(|name| name.rsplit_once('.'));
    stem.is_some_and(|(_, of)| of == uid)
}

fn age_of(metadata: &fs::Metadata) -> Duration {
    metadata.modified().ok().and_then(|modified| modified.elapsed().ok()).unwrap_or_default()
}

fn unless_absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
