//! The store of the code that jobs bring. Manifests and blobs are files in the state directory, each named by its
//! SHA-256. Code that no job uses stays, so that the job can run again, until all code needs more than half of the room.
//! Methods without `async` block the thread: call them on blocking threads.

mod copies;
mod disk;
mod packed;
mod restored;
mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use protocol::code::{BlobError, CodeId, Manifest, ScriptPath, Sha256};
use tracing::{info, warn};

use self::copies::Copies;
pub use self::copies::{CodePart, CopiedPart, PartError};
use self::disk::Disk;
pub use self::packed::{UnpackError, is_copy_of};
use self::restored::Misses;
pub use self::upload::Piece;
use crate::mutex::Mutex;

/// Maximum bytes of all code together.
pub const CODE_STORE_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Minimum time for which unused code stays after it was last sent or required. If an upload takes longer, its manifest
/// may be removed before the upload ends.
pub const UNUSED_TIME: Duration = Duration::from_secs(10 * 60);

/// The store.
#[derive(Debug)]
pub struct CodeStore {
    disk: Disk,
    most: u64,
    /// Locked while files are added or removed.
    space: Mutex<Space>,
    /// The code that is being sent to agents.
    copies: Copies,
    misses: Misses,
}

/// Bytes that count against the limit. See [`disk::charged`].
#[derive(Debug)]
struct Space {
    /// Bytes of files in the store.
    kept: u64,
    /// Bytes reserved for uploads in progress.
    reserved: u64,
}

impl Space {
    /// Whether `needed` more bytes stay below the limit of `most` bytes.
    fn check_room(&self, most: u64, needed: u64) -> Result<(), CodeError> {
        if self.kept + self.reserved + needed > most { Err(CodeError::Full { needed, most }) } else { Ok(()) }
    }
}

/// Why the store refuses code, or why a job cannot use code.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// No manifest has this id.
    #[error("this master has no manifest of code {0}: send the manifest first")]
    NoManifest(CodeId),
    /// The manifest or some blobs are missing.
    #[error("this master does not have the code {0}: send the code, then submit the job again")]
    Missing(CodeId),
    /// The code does not contain the job's script.
    #[error("the code has no file {0}")]
    NoScript(ScriptPath),
    /// The manifest's id is not the id in the request.
    #[error("the manifest's id is {0}, not the id in the request")]
    OtherId(CodeId),
    /// The stream of blobs is not valid.
    #[error("the blobs are refused")]
    Blobs(#[from] BlobError),
    /// The caller stopped sending.
    #[error("the upload ended early")]
    Aborted,
    /// There is no room for this code.
    #[error(
        "this master has no room for {needed} more bytes of code, because its limit is {most} bytes: delete jobs that are \
         no longer needed, or try again in 10 minutes"
    )]
    Full {
        /// The bytes that the code needs.
        needed: u64,
        /// The maximum bytes of all code.
        most: u64,
    },
    /// A file could not be read or written.
    #[error("cannot access the code store")]
    Disk(#[from] io::Error),
}

impl CodeStore {
    /// Opens the store in this folder, and creates the folder if it is missing. Removes unfinished uploads, and blobs
    /// that no manifest names.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Self::with_room(folder, CODE_STORE_BYTES)
    }

    /// Like [`Self::open`], with a limit of `most` bytes.
    pub fn with_room(folder: &Path, most: u64) -> io::Result<Self> {
        let disk = Disk::open(folder)?;
        // A crash during a sweep leaves blobs that no manifest names.
        let removed = disk.codes().and_then(|codes| disk.remove_blobs_except(&disk.named_by(codes)?));
        if let Err(error) = removed {
            warn!(%error, "cannot remove blobs that no manifest names");
        }
        let kept = disk.kept()?;
        let space = Mutex::new(Space { kept, reserved: 0 });
        Ok(Self { disk, most, space, copies: Copies::default(), misses: Misses::default() })
    }

    /// Stores a manifest. Returns the manifest's blobs that the store does not have.
    ///
    /// # Errors
    /// [`CodeError::OtherId`], [`CodeError::Full`], [`CodeError::Disk`].
    pub fn offer(&self, id: CodeId, manifest: &Manifest) -> Result<Vec<Sha256>, CodeError> {
        if manifest.id() != id {
            return Err(CodeError::OtherId(manifest.id()));
        }
        let mut space = self.space.lock();
        let missing = self.disk.missing(manifest);
        if self.disk.touch(id)?.is_none() {
            let text = serde_json::to_vec(manifest).map_err(io::Error::other)?;
            let needed = disk::charged(text.len() as u64);
            space.check_room(self.most, needed + total(&missing))?;
            self.disk.keep_manifest(id, &text)?;
            space.kept += needed;
        }
        Ok(missing.into_keys().collect())
    }

    /// Receives blobs of the code `id`, piece by piece, until [`Piece::End`]. If the stream is invalid or ends early,
    /// stores no blob. Returns the blobs that are still missing.
    ///
    /// # Errors
    /// [`CodeError::NoManifest`], [`CodeError::Blobs`], [`CodeError::Aborted`], [`CodeError::Full`],
    /// [`CodeError::Disk`].
    pub fn receive(&self, id: CodeId, next: impl FnMut() -> Option<Piece>) -> Result<Vec<Sha256>, CodeError> {
        let manifest = self.touch(id)?.ok_or(CodeError::NoManifest(id))?;
        let reserved = self.reserve(&manifest)?;
        let received = self.disk.upload(&manifest, next);
        let mut space = self.space.lock();
        space.reserved -= reserved;
        let received = received?;
        for (blob, size) in received.blobs() {
            if self.disk.keep_blob(&received.path(*blob), *blob)? {
                space.kept += disk::charged(*size);
            }
        }
        self.disk.sync_blobs()?;
        Ok(self.disk.missing(&manifest).into_keys().collect())
    }

    fn reserve(&self, manifest: &Manifest) -> Result<u64, CodeError> {
        let mut space = self.space.lock();
        let needed = total(&self.disk.missing(manifest));
        space.check_room(self.most, needed)?;
        space.reserved += needed;
        Ok(needed)
    }

    /// Checks that a job can use the code now. The code then stays for at least [`UNUSED_TIME`].
    ///
    /// # Errors
    /// [`CodeError::Missing`], [`CodeError::NoScript`], [`CodeError::Disk`].
    pub fn require(&self, id: CodeId, script: &ScriptPath) -> Result<(), CodeError> {
        let manifest =
            self.touch(id)?.filter(|manifest| self.disk.missing(manifest).is_empty()).ok_or(CodeError::Missing(id))?;
        if manifest.has(script) { Ok(()) } else { Err(CodeError::NoScript(script.clone())) }
    }

    /// Reads a manifest; `None` if the store does not have the manifest or one of its blobs.
    pub fn manifest(&self, id: CodeId) -> Option<Manifest> {
        self.disk.manifest(id).filter(|manifest| self.disk.missing(manifest).is_empty())
    }

    /// Reads a manifest and sets the time of its last use, so that no sweep removes it within [`UNUSED_TIME`].
    fn touch(&self, id: CodeId) -> io::Result<Option<Manifest>> {
        // The lock waits for a sweep in progress, which may remove this manifest.
        let _space = self.space.lock();
        self.disk.touch(id)
    }

    /// Reads a blob; `None` if the file is missing or damaged. Removes a damaged file, so that the next client sends
    /// the blob again.
    pub fn blob(&self, blob: Sha256) -> io::Result<Option<Vec<u8>>> {
        if let Some(content) = self.disk.blob(blob)? {
            return Ok(Some(content));
        }
        let mut space = self.space.lock();
        // An upload may have replaced the damaged file before this thread got the lock.
        let content = self.disk.blob(blob)?;
        if content.is_none() {
            let freed = self.disk.remove_blob(blob)?;
            space.kept = space.kept.saturating_sub(freed);
        }
        Ok(content)
    }

    /// If all code needs more than half of the room, removes code that is not in `used` and was last sent or required
    /// more than [`UNUSED_TIME`] before `now`. Begins with the code that was not used for the longest time.
    pub fn sweep(&self, used: &BTreeSet<CodeId>, now: SystemTime) -> io::Result<()> {
        let mut space = self.space.lock();
        let surplus = space.kept.saturating_sub(self.most / 2);
        if surplus == 0 {
            return Ok(());
        }
        let mut codes = self.disk.codes()?;
        let is_old = |touched: SystemTime| now.duration_since(touched).is_ok_and(|age| age > UNUSED_TIME);
        let unused = codes.iter().filter(|id| !used.contains(id));
        let mut unused: Vec<_> = unused.filter_map(|id| Some((self.disk.touched(*id)?, *id))).collect();
        unused.retain(|(touched, _)| is_old(*touched));
        if unused.is_empty() {
            return Ok(());
        }
        unused.sort_unstable();
        let removed = least_recently_used(&unused, self.needs(&codes)?, surplus);
        for id in &removed {
            info!(code = %id, "removing code that no job uses");
            self.disk.remove_manifest(*id)?;
        }
        // Jobs can share blobs, so the blobs of all remaining manifests stay.
        codes.retain(|id| !removed.contains(id));
        self.disk.remove_blobs_except(&self.disk.named_by(codes)?)?;
        space.kept = self.disk.kept()?;
        Ok(())
    }

    /// The size of each code's manifest, and its blobs with their sizes.
    fn needs(&self, codes: &[CodeId]) -> io::Result<Needs> {
        let need = |id: &CodeId| Ok((*id, (self.disk.manifest_size(*id)?, self.disk.named_by(vec![*id])?)));
        codes.iter().map(need).collect()
    }
}

type Needs = BTreeMap<CodeId, (u64, BTreeMap<Sha256, u64>)>;

/// The first codes of `unused` whose removal frees `surplus` bytes. A blob is freed with the last code that names it.
fn least_recently_used(unused: &[(SystemTime, CodeId)], needs: Needs, surplus: u64) -> Vec<CodeId> {
    let mut users: BTreeMap<Sha256, usize> = BTreeMap::new();
    needs.values().flat_map(|(_, blobs)| blobs.keys()).for_each(|blob| *users.entry(*blob).or_default() += 1);
    let (mut needs, mut freed, mut removed) = (needs, 0, vec![]);
    for (_, id) in unused {
        let Some((manifest, blobs)) = needs.remove(id).filter(|_| freed < surplus) else { break };
        freed += disk::charged(manifest);
        for (blob, size) in blobs {
            let others = users.entry(blob).or_default();
            *others = others.saturating_sub(1);
            freed += if *others == 0 { disk::charged(size) } else { 0 };
        }
        removed.push(*id);
    }
    removed
}

/// The space that blobs need.
fn total(blobs: &BTreeMap<Sha256, u64>) -> u64 {
    blobs.values().map(|size| disk::charged(*size)).sum()
}
