//! The bytes of code that the master is sending to agents. Agents that lack the same bytes share one copy in memory,
//! also if they belong to different jobs. There is a limit for all copies together.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use protocol::code::{CodeId, Sha256};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::CodeStore;
use super::disk::Disk;
use crate::host::files::if_there;
use crate::mutex::Mutex;

const MIB: u64 = 1024 * 1024;
/// Maximum of all large copies together, in MiB: two jobs with the maximum of code.
const ROOM_MIB: u32 = 128;
/// Maximum of a small copy, in MiB. Small copies have a room of their own, so they do not wait for large ones on slow links.
const SMALL_MIB: u32 = 8;
/// Maximum of all small copies together, in MiB.
const SMALL_ROOM_MIB: u32 = 32;

/// What an agent lacks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CodePart {
    /// The manifest of this code.
    Manifest(CodeId),
    /// These blobs, as one stream.
    Blobs(Vec<Sha256>),
}

impl CodePart {
    /// The size in bytes; `None` if the store does not have the part.
    fn size(&self, disk: &Disk) -> io::Result<Option<u64>> {
        if_there(match self {
            CodePart::Manifest(id) => disk.manifest_size(*id),
            CodePart::Blobs(blobs) => blobs.iter().map(|blob| disk.blob_size(*blob)).sum(),
        })
    }

    /// Reads the files, which have `size` bytes; `None` if the store does not have the part.
    fn read(&self, store: &CodeStore, size: u64) -> io::Result<Option<Vec<u8>>> {
        let blobs = match self {
            CodePart::Manifest(id) => {
                return Ok(store.manifest(*id).map(|manifest| serde_json::to_vec(&manifest)).transpose()?);
            }
            CodePart::Blobs(blobs) => blobs,
        };
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default() + blobs.len() * Sha256::BYTES);
        for blob in blobs {
            let Some(content) = store.blob(*blob)? else { return Ok(None) };
            bytes.extend_from_slice(blob.as_bytes());
            bytes.extend(content);
        }
        Ok(Some(bytes))
    }
}

/// Why a part was not read.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The store does not have the part, or has lost it.
    #[error("this master does not have the code")]
    Lost,
    /// A file could not be read.
    #[error("cannot access the code store")]
    Disk(#[from] io::Error),
}

/// The copies that are in memory now.
#[derive(Debug)]
pub(super) struct Copies {
    known: Mutex<HashMap<CodePart, Weak<OnceCell<Copy>>>>,
    /// A permit for each MiB.
    room: Arc<Semaphore>,
    /// A permit for each MiB of small copies.
    small_room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Copy {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

/// The bytes of a part. They stay in memory until the last [`CopiedPart`] of the same part is dropped.
#[derive(Debug)]
pub struct CopiedPart(Arc<OnceCell<Copy>>);

impl Default for Copies {
    fn default() -> Self {
        let room = |mib: u32| Arc::new(Semaphore::new(mib as usize));
        Self { known: Mutex::default(), room: room(ROOM_MIB), small_room: room(SMALL_ROOM_MIB) }
    }
}

impl Copies {
    /// The copy of this part, which may still be empty.
    fn of(&self, part: &CodePart) -> Arc<OnceCell<Copy>> {
        let mut known = self.known.lock();
        known.retain(|_, copy| copy.strong_count() > 0);
        let live = known.get(part).and_then(Weak::upgrade);
        live.unwrap_or_else(|| {
            let copy = Arc::default();
            known.insert(part.clone(), Arc::downgrade(&copy));
            copy
        })
    }
}

impl CopiedPart {
    /// The bytes.
    pub fn bytes(&self) -> Bytes {
        self.0.get().expect("`CodeStore::copy` fills the cell before it returns").bytes.clone()
    }
}

impl CodeStore {
    /// Reads a part. Concurrent calls for a part share one copy. Waits while other copies take up all the room.
    pub async fn copy(self: &Arc<Self>, part: CodePart) -> Result<CopiedPart, PartError> {
        let copied = CopiedPart(self.copies.of(&part));
        copied.0.get_or_try_init(|| self.load(part)).await?;
        Ok(copied)
    }

    async fn load(self: &Arc<Self>, part: CodePart) -> Result<Copy, PartError> {
        let part = Arc::new(part);
        let size = self.reading(&part, |store, part| part.size(&store.disk)).await?;
        // A manifest is small, so it needs no permit. With a permit, a start would wait for another job's blobs, even
        // if its agents lack nothing.
        let mib = match *part {
            CodePart::Manifest(_) => 0,
            CodePart::Blobs(_) => u32::try_from(size.div_ceil(MIB)).unwrap_or(ROOM_MIB).min(ROOM_MIB),
        };
        let Copies { room, small_room, .. } = &self.copies;
        let room = Arc::clone(if mib <= SMALL_MIB { small_room } else { room }).acquire_many_owned(mib).await;
        let room = room.expect("the semaphore is never closed");
        let bytes = self.reading(&part, move |store, part| part.read(store, size)).await?;
        Ok(Copy { bytes: bytes.into(), _room: room })
    }

    /// Calls `read` on a thread for blocking work. If `read` returns `None`, the store has lost the code.
    async fn reading<T: Send + 'static>(
        self: &Arc<Self>,
        part: &Arc<CodePart>,
        read: impl FnOnce(&Self, &CodePart) -> io::Result<Option<T>> + Send + 'static,
    ) -> Result<T, PartError> {
        let (store, part) = (Arc::clone(self), Arc::clone(part));
        let read = spawn_blocking(move || read(&store, &part)).await.map_err(io::Error::other)??;
        read.ok_or(PartError::Lost)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn agents_that_lack_the_same_blobs_share_one_copy_and_all_copies_share_one_limit() {
        let folder = tempfile::tempdir().unwrap();
        let room = Arc::new(Semaphore::new(2));
        let copies = Copies { small_room: Arc::clone(&room), ..Copies::default() };
        let store = Arc::new(CodeStore { copies, ..CodeStore::open(folder.path()).unwrap() });
        let part = |byte: u8| {
            let content = vec![byte; 1024 * 1024];
            let blob = Sha256::of(&content);
            std::fs::write(folder.path().join("blobs").join(blob.to_string()), content).unwrap();
            CodePart::Blobs(vec![blob])
        };
        let (first, second, third) = (part(1), part(2), part(3));
        let (one, same) = (store.copy(first.clone()).await.unwrap(), store.copy(first).await.unwrap());
        assert_eq!(one.bytes().as_ptr(), same.bytes().as_ptr(), "the bytes are in memory twice");
        assert_eq!((one.bytes().len(), room.available_permits()), (32 + 1024 * 1024, 1));
        let second = store.copy(second).await.unwrap();
        assert_eq!(room.available_permits(), 0, "a third copy would get room");
        let waits = tokio::spawn(async move { store.copy(third).await });
        drop((one, same));
        assert_eq!(waits.await.unwrap().unwrap().bytes().len(), second.bytes().len());
    }

    #[tokio::test]
    async fn a_small_copy_does_not_wait_for_large_ones() {
        let folder = tempfile::tempdir().unwrap();
        let copies = Copies { room: Arc::new(Semaphore::new(0)), ..Copies::default() };
        let store = Arc::new(CodeStore { copies, ..CodeStore::open(folder.path()).unwrap() });
        let blob = Sha256::of(b"small");
        std::fs::write(folder.path().join("blobs").join(blob.to_string()), b"small").unwrap();
        let copied = timeout(Duration::from_secs(10), store.copy(CodePart::Blobs(vec![blob]))).await;
        assert_eq!(copied.expect("it waits").unwrap().bytes().len(), Sha256::BYTES + 5);
    }

    #[tokio::test]
    async fn a_part_that_the_store_has_lost_takes_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(CodeStore::open(folder.path()).unwrap());
        let lost = store.copy(CodePart::Blobs(vec![Sha256::of(b"gone")])).await;
        assert!(matches!(lost, Err(PartError::Lost)), "{lost:?}");
        assert_eq!(store.copies.room.available_permits(), ROOM_MIB as usize);
    }
}
