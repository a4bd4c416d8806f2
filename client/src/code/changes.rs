//! Waits until files in folders change (`inotify(7)`).

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, timeout, timeout_at};

/// A change is complete when nothing has changed for this time. Editors and git write several files.
const QUIET: Duration = Duration::from_millis(200);
/// After this time since the first change, the change is complete in any case.
const LONGEST: Duration = Duration::from_secs(2);
/// Maximum bytes of events that are read at a time.
const EVENTS: usize = 4096;

/// A watch of folders.
#[derive(Debug)]
pub(crate) struct Changes {
    /// The descriptor of inotify. It is not a pipe, but is read like one.
    inotify: Receiver,
    /// The watch descriptor of each folder. A folder that is deleted and created again gets another descriptor.
    watched: BTreeSet<i32>,
}

impl Changes {
    /// Creates a watch of no folders. Must be called in a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { inotify: Receiver::from_owned_fd_unchecked(inotify)?, watched: BTreeSet::new() })
    }

    /// Watches only these folders, without their subfolders. Returns whether at least one folder was not watched
    /// before. Leaves out folders that no longer exist.
    pub(crate) fn watch(&mut self, folders: &[PathBuf]) -> io::Result<bool> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let add = |folder: &PathBuf| match inotify::add_watch(&self.inotify, folder, flags) {
            Ok(number) => Some(Ok(number)),
            Err(error) if io::Error::from(error).kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(Err(error.into())),
        };
        let now: BTreeSet<i32> = folders.iter().filter_map(add).collect::<io::Result<_>>()?;
        let is_new = !now.is_subset(&self.watched);
        for left_out in self.watched.difference(&now) {
            // Fails if the folder is gone, because Linux has removed its watch then.
            let _ = inotify::remove_watch(&self.inotify, *left_out);
        }
        self.watched = now;
        Ok(is_new)
    }

    /// Waits for a change, and then until nothing has changed for [`QUIET`], but at most [`LONGEST`]. Returns the time
    /// of the last change. If nothing changes within `pause`, returns `None`.
    pub(crate) async fn settled(&mut self, pause: Option<Duration>) -> io::Result<Option<Instant>> {
        match pause {
            None => self.next().await?,
            Some(pause) => match timeout(pause, self.next()).await {
                Ok(changed) => changed?,
                Err(_) => return Ok(None),
            },
        }
        let mut last = Instant::now();
        let latest = last + LONGEST;
        while last < latest {
            match timeout_at(latest.min(last + QUIET), self.next()).await {
                Ok(changed) => changed?,
                Err(_) => break,
            }
            last = Instant::now();
        }
        Ok(Some(last))
    }

    /// Waits for events and reads them, until one of them means a change.
    async fn next(&self) -> io::Result<()> {
        let mut events = [0; EVENTS];
        loop {
            self.inotify.readable().await?;
            match self.inotify.try_read(&mut events) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(length) if !has_change(&events[..length]) => {}
                read => return read.map(drop),
            }
        }
    }
}

/// Whether one of these events means a change. Every event does, except the end of a watch. An event consists of a
/// descriptor, the kind, a cookie and the length of a name, with 4 bytes each, and the name (`inotify(7)`).
fn has_change(mut events: &[u8]) -> bool {
    while let Some((head, rest)) = events.split_first_chunk::<16>() {
        let [_, kind, _, length] =
            [0, 4, 8, 12].map(|at| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        if kind & ReadFlags::IGNORED.bits() == 0 {
            return true;
        }
        events = rest.get(length as usize..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn a_file_in_a_folder_that_is_no_longer_watched_is_no_change() {
        let [left, kept] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [in_left, in_kept] = [&left, &kept].map(|folder| folder.path().join("file"));
        let mut changes = Changes::new().unwrap();
        assert!(changes.watch(&[left.path().to_owned(), kept.path().to_owned()]).unwrap());
        assert!(!changes.watch(&[kept.path().to_owned()]).unwrap());
        fs::write(in_left, "").unwrap();
        assert_eq!(changes.settled(Some(QUIET)).await.unwrap(), None, "the end of a watch is a change");
        fs::write(in_kept, "").unwrap();
        assert!(changes.settled(Some(Duration::from_secs(60))).await.unwrap().is_some());
    }
}
