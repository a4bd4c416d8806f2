//! The code that a job brings. A manifest lists the files, and their contents follow as blobs. Blobs wait in a folder
//! of the agent until all blobs have arrived and are verified. Only then are the files moved to the working directory.

mod held;
mod place;
mod placed;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use protocol::agent::CodeStatus;
use protocol::code::{BlobError, BlobPart, BlobReader, CodeFile, CodeId, Hasher, Manifest, MissingBlobs, Sha256};

pub use self::held::Held;
use self::placed::{Placed, has_all_files};

/// The agent's own folder in the working directory. Manifests with paths in this folder are invalid.
const FOLDER: &str = ".muster";
/// The file of an arriving blob. The file gets the blob's name when the blob is complete and verified.
const UNFINISHED: &str = "unfinished";
/// Modes of the code's files in the working directory.
const MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;

/// Why a request about code fails.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// The manifest has another id.
    #[error("the manifest of code {asked} has the id {found}")]
    WrongId {
        /// The id in the request.
        asked: CodeId,
        /// The manifest's own id.
        found: CodeId,
    },
    /// The manifest, or a blob, has not arrived.
    #[error("the code {0} is not complete here: send its manifest and its missing blobs first")]
    Missing(CodeId),
    /// A file of the code has another content by now.
    #[error("the code {0} is not complete here any more: its script or someone else has changed a file")]
    Changed(CodeId),
    /// The stream of blobs is wrong.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// Something else has the path of a file or folder of the code.
    #[error("{0:?} is in the way of the job's code: remove it, or rename the file of the code")]
    InTheWay(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot keep the job's code in the working directory: {0}")]
    File(#[from] io::Error),
}

/// The id and the files of some code.
#[derive(Debug)]
struct Code {
    id: CodeId,
    manifest: Arc<Manifest>,
}

/// The code in one working directory, and code that is still arriving.
#[derive(Debug)]
pub struct CodeFolder {
    work_dir: PathBuf,
    /// The folder for code that is not in place yet. It is on the working directory's file system, so that a rename can
    /// move a file to its place.
    arriving: PathBuf,
    /// The record of the code in the working directory. Other agents may share this directory.
    record: Placed,
    /// Code with missing blobs.
    incoming: Option<Code>,
    /// Complete code that is not in the working directory.
    staged: Option<Code>,
    /// The code in the working directory.
    placed: Option<Code>,
}

impl CodeFolder {
    /// The state of a working directory before the first delivery. Code arrives in the folder `arriving`; `None`: in
    /// Muster's folder in the working directory.
    pub fn new(work_dir: PathBuf, arriving: Option<PathBuf>) -> Self {
        let own = work_dir.join(FOLDER);
        let (arriving, record) = (arriving.unwrap_or_else(|| own.clone()), Placed::new(own));
        Self { work_dir, arriving, record, incoming: None, staged: None, placed: None }
    }

    /// The ids of the code, for the agent's status.
    pub fn status(&self) -> CodeStatus {
        let id = |code: &Option<Code>| code.as_ref().map(|code| code.id);
        CodeStatus { staged: id(&self.staged).or(id(&self.placed)), running: id(&self.placed) }
    }

    /// Accepts a manifest, and returns the missing blobs. Reuses files of the code that is in place.
    ///
    /// # Errors
    /// [`CodeError::WrongId`], [`CodeError::InTheWay`] and [`CodeError::File`].
    pub fn offer(&mut self, id: CodeId, manifest: Manifest) -> Result<MissingBlobs, CodeError> {
        let found = manifest.id();
        if found != id {
            return Err(CodeError::WrongId { asked: id, found });
        }
        if is(&self.placed, id) {
            self.staged = None;
        }
        if self.status().staged == Some(id) {
            self.incoming = None;
            return Ok(MissingBlobs::default());
        }
        if self.placed.is_none() && self.lies_here(id) {
            (self.placed, self.incoming, self.staged) = (Some(Code { id, manifest: Arc::new(manifest) }), None, None);
            return Ok(MissingBlobs::default());
        }
        let blobs = manifest.blobs();
        self.incoming = Some(Code { id, manifest: Arc::new(manifest) });
        self.reuse(&blobs)?;
        self.complete()
    }

    /// Accepts blobs, in the form that [`BlobReader`] describes, and returns the blobs that are still missing.
    ///
    /// # Errors
    /// All of [`CodeError`]. Complete blobs are kept even after an error.
    pub fn receive(&mut self, id: CodeId, mut parts: impl Iterator<Item = Bytes>) -> Result<MissingBlobs, CodeError> {
        let Some(code) = self.incoming.as_ref().filter(|code| code.id == id) else {
            let is_here = self.status().staged == Some(id);
            return if is_here { Ok(MissingBlobs::default()) } else { Err(CodeError::Missing(id)) };
        };
        let mut incoming =
            Incoming { folder: self.folder("incoming"), reader: BlobReader::new(&code.manifest), file: None };
        parts.try_for_each(|part| incoming.take(&part))?;
        incoming.reader.finish()?;
        self.complete()
    }

    /// Puts this code into the working directory, if it is not yet there. No run may be active. Returns sentences about
    /// files that both the script and the new code have changed.
    ///
    /// # Errors
    /// [`CodeError::Missing`], [`CodeError::InTheWay`] and [`CodeError::File`].
    pub fn put_in_place(&mut self, id: CodeId) -> Result<Vec<String>, CodeError> {
        if is(&self.placed, id) {
            return Ok(vec![]);
        }
        let Some(code) = self.staged.as_ref().filter(|code| code.id == id) else {
            return Err(CodeError::Missing(id));
        };
        let _lock = self.record.lock()?;
        let earlier = self.earlier();
        let change = place::Change::new(&self.work_dir, &code.manifest, earlier.as_deref())?;
        if let Some(path) = change.obstacle() {
            return Err(CodeError::InTheWay(path));
        }
        let moved = change.apply(&self.folder("staged"));
        let moved = moved.and_then(|said| self.record.write(&code.manifest).map(|()| said));
        // If a move has failed, the working directory may contain files of old and new code. So no code counts as
        // placed, and the next delivery sends all blobs that are not there.
        self.placed = self.staged.take().filter(|_| moved.is_ok());
        Ok(moved?)
    }

    /// The code in the working directory. An earlier agent, or another agent, may have put it there.
    fn earlier(&self) -> Option<Arc<Manifest>> {
        let known = || self.placed.as_ref().map(|code| Arc::clone(&code.manifest));
        self.record.read().map(Arc::new).or_else(known)
    }

    /// Whether this code is in the working directory already. Files that a script has changed since then stay as they
    /// are.
    fn lies_here(&self, id: CodeId) -> bool {
        self.record.read().is_some_and(|code| code.id() == id && has_all_files(&self.work_dir, &code))
    }

    /// Finds the files of this code: at their paths in the working directory, or in the folder for staged code. Reads
    /// no file.
    ///
    /// # Errors
    /// [`CodeError::Missing`].
    pub fn held(&self, id: CodeId) -> Result<Held, CodeError> {
        let staged = self.folder("staged");
        if let Some(Code { manifest, .. }) = self.placed.as_ref().filter(|code| code.id == id) {
            return Ok(Held::new(Arc::clone(manifest), |_, file| self.work_dir.join(file.path.as_str())));
        }
        match self.staged.as_ref().filter(|code| code.id == id) {
            Some(Code { manifest, .. }) => {
                Ok(Held::new(Arc::clone(manifest), |index, _| staged.join(index.to_string())))
            }
            None => Err(CodeError::Missing(id)),
        }
    }

    /// Keeps blobs of an interrupted delivery if `blobs` contains them. Copies further blobs from the files of the code
    /// that is in place.
    fn reuse(&self, blobs: &BTreeMap<Sha256, u64>) -> io::Result<()> {
        let folder = self.folder("incoming");
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let known = entry.file_name().to_str().and_then(|name| name.parse::<Sha256>().ok());
            if !known.is_some_and(|blob| blobs.contains_key(&blob)) {
                fs::remove_file(entry.path())?;
            }
        }
        let earlier = self.earlier();
        let placed = earlier.iter().flat_map(|code| code.files());
        for file in placed.filter(|file| blobs.contains_key(&file.sha256)) {
            let (from, to) = (self.work_dir.join(file.path.as_str()), folder.join(file.sha256.to_string()));
            // The script may have changed this file.
            if !to.exists() && has_content(&from, file.sha256, file.size)? {
                let unfinished = folder.join(UNFINISHED);
                fs::copy(from, &unfinished)?;
                fs::rename(unfinished, to)?;
            }
        }
        Ok(())
    }

    /// Stages the incoming code if it is complete. The first code is put in place at once, so that a warm interpreter
    /// can read it. If other code is in the working directory, scripts of other agents may use it.
    fn complete(&mut self) -> Result<MissingBlobs, CodeError> {
        let Some(code) = &self.incoming else { return Ok(MissingBlobs::default()) };
        let (id, folder) = (code.id, self.folder("incoming"));
        let blobs = code.manifest.blobs().into_iter();
        // A crash or a broken disk may have damaged a received blob. A file that cannot be read counts as damaged.
        let has = |blob: Sha256, size: u64| has_content(&folder.join(blob.to_string()), blob, size).unwrap_or(false);
        let missing: Vec<Sha256> = blobs.filter(|(blob, size)| !has(*blob, *size)).map(|(blob, _)| blob).collect();
        if !missing.is_empty() {
            return Ok(MissingBlobs { missing });
        }
        let staged = stage(&code.manifest, &folder, &self.folder("staged"));
        self.staged = self.incoming.take().filter(|_| staged.is_ok());
        if let Err(error) = staged {
            // The disk may be full, so free its space.
            let _ = fs::remove_dir_all(self.folder("staged"));
            return Err(error.into());
        }
        if self.placed.is_none() && self.record.read().is_none_or(|code| code.id() == id) {
            self.put_in_place(id)?;
        }
        Ok(MissingBlobs::default())
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.arriving.join(name)
    }
}

fn is(code: &Option<Code>, id: CodeId) -> bool {
    code.as_ref().is_some_and(|code| code.id == id)
}

/// Creates one file for each file of the manifest, with its mode. The file's name is its index in the manifest. Removes
/// the folder `blobs`.
fn stage(manifest: &Manifest, blobs: &Path, staged: &Path) -> io::Result<()> {
    match fs::remove_dir_all(staged) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => fs::create_dir_all(staged)?,
    }
    let mut moved: BTreeMap<Sha256, PathBuf> = BTreeMap::new();
    for (index, file) in manifest.files().iter().enumerate() {
        let target = staged.join(index.to_string());
        match moved.get(&file.sha256) {
            Some(first) => drop(fs::copy(first, &target)?),
            None => {
                fs::rename(blobs.join(file.sha256.to_string()), &target)?;
                moved.insert(file.sha256, target.clone());
            }
        }
        set_mode(&target, file)?;
    }
    fs::remove_dir_all(blobs)
}

fn set_mode(path: &Path, file: &CodeFile) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(if file.executable { EXECUTABLE_MODE } else { MODE }))
}

/// Whether `path` is a regular file with this content. Reads the whole file if its size in bytes is right.
fn has_content(path: &Path, content: Sha256, size: u64) -> io::Result<bool> {
    // Opening a FIFO would wait for its writer.
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == size) {
        return Ok(false);
    }
    let (mut file, mut hasher, mut buffer) = (File::open(path)?, Hasher::default(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish() == content),
            length => hasher.update(&buffer[..length]),
        }
    }
}

/// Writes blobs to files as they arrive.
struct Incoming {
    folder: PathBuf,
    reader: BlobReader,
    file: Option<File>,
}

impl Incoming {
    fn take(&mut self, mut part: &[u8]) -> Result<(), CodeError> {
        let unfinished = self.folder.join(UNFINISHED);
        while let Some(next) = self.reader.next(&mut part)? {
            match next {
                BlobPart::Begin(_) => self.file = Some(File::create(&unfinished)?),
                BlobPart::Content(content) => self.file.iter_mut().try_for_each(|file| file.write_all(content))?,
                BlobPart::End(blob) => {
                    self.file = None;
                    fs::rename(&unfinished, self.folder.join(blob.to_string()))?;
                }
            }
        }
        Ok(())
    }
}
