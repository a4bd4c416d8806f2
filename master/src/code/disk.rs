//! The files of the store of code: `manifests/<id>` and `blobs/<SHA-256>`. New files are written in `uploads/` and then
//! moved. A manifest's modification time is the time at which its code was last sent or required.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use protocol::code::{CodeId, Manifest, Sha256};

use crate::host::files::{if_there, put, sync_folder, unless_absent};

/// Sizes of files are rounded up to a multiple of this many bytes. So the limit of all code also limits the number of
/// files.
const BLOCK: u64 = 4096;

/// How much of the limit of all code a file of this size uses, in bytes.
pub(super) fn charged(size: u64) -> u64 {
    size.max(1).next_multiple_of(BLOCK)
}

#[derive(Debug)]
pub(super) struct Disk {
    manifests: PathBuf,
    blobs: PathBuf,
    pub(super) uploads: PathBuf,
}

impl Disk {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let disk =
            Self { manifests: folder.join("manifests"), blobs: folder.join("blobs"), uploads: folder.join("uploads") };
        unless_absent(fs::remove_dir_all(&disk.uploads))?;
        for folder in [&disk.manifests, &disk.blobs, &disk.uploads] {
            fs::create_dir_all(folder)?;
        }
        Ok(disk)
    }

    /// How much of the limit all files use, in bytes.
    pub(super) fn kept(&self) -> io::Result<u64> {
        let mut kept = 0;
        for folder in [&self.manifests, &self.blobs] {
            for entry in fs::read_dir(folder)? {
                kept += charged(entry?.metadata()?.len());
            }
        }
        Ok(kept)
    }

    /// The blobs of this code that the store does not have. A file that a crash has shortened is treated as missing.
    pub(super) fn missing(&self, manifest: &Manifest) -> BTreeMap<Sha256, u64> {
        let has = |blob: Sha256, size: u64| self.blob_path(blob).metadata().is_ok_and(|found| found.len() == size);
        manifest.blobs().into_iter().filter(|(blob, size)| !has(*blob, *size)).collect()
    }

    /// Reads a manifest; `None` if the file is missing, damaged or unreadable.
    pub(super) fn manifest(&self, id: CodeId) -> Option<Manifest> {
        self.read_manifest(id).ok().flatten()
    }

    /// The blobs that these manifests name, with their sizes.
    pub(super) fn named_by(&self, codes: Vec<CodeId>) -> io::Result<BTreeMap<Sha256, u64>> {
        let mut named = BTreeMap::new();
        for id in codes {
            named.extend(self.read_manifest(id)?.iter().flat_map(Manifest::blobs));
        }
        Ok(named)
    }

    /// Reads a manifest; `None` if the file is missing or damaged.
    fn read_manifest(&self, id: CodeId) -> io::Result<Option<Manifest>> {
        let text = if_there(fs::read(self.manifest_path(id)))?;
        let manifest = text.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok());
        Ok(manifest.filter(|manifest| manifest.id() == id))
    }

    pub(super) fn keep_manifest(&self, id: CodeId, text: &[u8]) -> io::Result<()> {
        let new = self.uploads.join(uuid::Uuid::new_v4().to_string());
        let kept = put(text, (File::create(&new)?, &new), &self.manifest_path(id));
        kept.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    pub(super) fn remove_manifest(&self, id: CodeId) -> io::Result<()> {
        unless_absent(fs::remove_file(self.manifest_path(id)))
    }

    /// Sets the time of this code's last use to now. Returns the code's manifest; `None` if it is missing or damaged.
    pub(super) fn touch(&self, id: CodeId) -> io::Result<Option<Manifest>> {
        let Some(file) = if_there(File::options().append(true).open(self.manifest_path(id)))? else { return Ok(None) };
        file.set_modified(SystemTime::now())?;
        self.read_manifest(id)
    }

    /// When this code was last used.
    pub(super) fn touched(&self, id: CodeId) -> Option<SystemTime> {
        self.manifest_path(id).metadata().and_then(|found| found.modified()).ok()
    }

    /// The ids of all manifests.
    pub(super) fn codes(&self) -> io::Result<Vec<CodeId>> {
        names(&self.manifests)
    }

    /// The size of a manifest's file.
    pub(super) fn manifest_size(&self, id: CodeId) -> io::Result<u64> {
        self.manifest_path(id).metadata().map(|found| found.len())
    }

    /// The size of a blob's file.
    pub(super) fn blob_size(&self, blob: Sha256) -> io::Result<u64> {
        self.blob_path(blob).metadata().map(|found| found.len())
    }

    /// Reads a blob; `None` if the file is missing or damaged.
    pub(super) fn blob(&self, blob: Sha256) -> io::Result<Option<Vec<u8>>> {
        let content = if_there(fs::read(self.blob_path(blob)))?;
        Ok(content.filter(|content| Sha256::of(content) == blob))
    }

    /// Removes a blob. Returns how much of the limit its file used, in bytes.
    pub(super) fn remove_blob(&self, blob: Sha256) -> io::Result<u64> {
        let freed = self.blob_path(blob).metadata().map_or(0, |found| charged(found.len()));
        unless_absent(fs::remove_file(self.blob_path(blob)))?;
        Ok(freed)
    }

    /// Moves a blob from this file to the store. Returns whether the blob is new to the store.
    pub(super) fn keep_blob(&self, file: &Path, blob: Sha256) -> io::Result<bool> {
        let is_new = !self.blob_path(blob).exists();
        fs::rename(file, self.blob_path(blob))?;
        Ok(is_new)
    }

    /// Returns when the moves of blobs are on the disk.
    pub(super) fn sync_blobs(&self) -> io::Result<()> {
        sync_folder(&self.blobs)
    }

    pub(super) fn remove_blobs_except(&self, named: &BTreeMap<Sha256, u64>) -> io::Result<()> {
        let blobs: Vec<Sha256> = names(&self.blobs)?;
        blobs
            .into_iter()
            .filter(|blob| !named.contains_key(blob))
            .try_for_each(|blob| unless_absent(fs::remove_file(self.blob_path(blob))))
    }

    fn manifest_path(&self, id: CodeId) -> PathBuf {
        self.manifests.join(id.to_string())
    }

    fn blob_path(&self, blob: Sha256) -> PathBuf {
        self.blobs.join(blob.to_string())
    }
}

/// The names of a folder's files, parsed. Skips files with other names, which do not belong to the store.
fn names<T: FromStr>(folder: &Path) -> io::Result<Vec<T>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}
