//! The code that a job brings. A manifest lists the files, and their contents follow as blobs. Blobs wait in a folder
//! of the agent until all blobs have arrived and are verified. Only then are the files moved to the working directory.

mod held;
mod place;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use placed_code::{PlacedCode, Record, has_all_files, has_content};
use protocol::agent::CodeStatus;
use protocol::code::{BlobError, BlobPart, BlobReader, CodeFile, CodeId, Manifest, MissingBlobs, OWN_FOLDER, Sha256};
use tracing::warn;

pub use self::held::HeldFiles;

/// The file of an arriving blob. The file gets the blob's name when the blob is complete and verified.
const UNFINISHED: &str = "unfinished";
/// Modes of the code's files in the working directory.
const MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;

/// Why a request about code fails.
#[derive(Debug, thiserror::Error)]
pub enum CodeRequestError {
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
    record: Record,
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
        let arriving = arriving.unwrap_or_else(|| work_dir.join(OWN_FOLDER));
        let record = Record::new(work_dir.clone());
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
    /// [`CodeRequestError::WrongId`], [`CodeRequestError::InTheWay`] and [`CodeRequestError::File`].
    pub fn offer(&mut self, id: CodeId, manifest: Manifest) -> Result<MissingBlobs, CodeRequestError> {
        let found = manifest.id();
        if found != id {
            return Err(CodeRequestError::WrongId { asked: id, found });
        }
        if self.placed.is_some() {
            drop(self.locked()?);
        }
        if is(&self.placed, id) {
            self.staged = None;
        }
        if self.status().staged == Some(id) {
            self.incoming = None;
            return Ok(MissingBlobs::default());
        }
        if self.placed.is_none() && self.has_all_of(self.earlier().as_ref(), id) {
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
    /// All of [`CodeRequestError`]. Complete blobs are kept even after an error.
    pub fn receive(
        &mut self,
        id: CodeId,
        mut parts: impl Iterator<Item = Bytes>,
    ) -> Result<MissingBlobs, CodeRequestError> {
        let Some(code) = self.incoming.as_ref().filter(|code| code.id == id) else {
            let is_here = self.status().staged == Some(id);
            return if is_here { Ok(MissingBlobs::default()) } else { Err(CodeRequestError::Missing(id)) };
        };
        let mut incoming =
            Incoming { folder: self.folder("incoming"), reader: BlobReader::new(&code.manifest), file: None };
        let received = parts.try_for_each(|part| incoming.take(&part)).and_then(|()| Ok(incoming.reader.finish()?));
        if received.is_err() {
            // On a full disk, others need the room of a blob that did not arrive. Usually there is no such file.
            let _ = fs::remove_file(incoming.folder.join(UNFINISHED));
        }
        received.and_then(|()| self.complete())
    }

    /// Puts this code into the working directory, if it is not yet there. No run may be active. Returns sentences about
    /// files that both the script and the new code have changed.
    ///
    /// # Errors
    /// [`CodeRequestError::Missing`], [`CodeRequestError::InTheWay`] and [`CodeRequestError::File`].
    pub fn put_in_place(&mut self, id: CodeId) -> Result<Vec<String>, CodeRequestError> {
        let _lock = self.locked()?;
        if is(&self.placed, id) {
            return Ok(vec![]);
        }
        let Some(code) = self.staged.as_ref().filter(|code| code.id == id) else {
            return Err(CodeRequestError::Missing(id));
        };
        let said = self.replace(code);
        // If a move has failed, the working directory may contain files of old and new code. So no code counts as
        // placed, and the next delivery sends all blobs that are not there.
        if !matches!(said, Err(CodeRequestError::InTheWay(_))) {
            self.placed = self.staged.take().filter(|_| said.is_ok());
        }
        said
    }

    /// Puts new code in place of the code in the working directory, unless another agent has done so. Until all files
    /// are changed, the record names the old code and the new code, so that the next delivery knows the contents of
    /// both, even if this agent is killed.
    fn replace(&self, Code { id, manifest: new }: &Code) -> Result<Vec<String>, CodeRequestError> {
        let (staged, earlier) = (self.folder("staged"), self.earlier());
        if self.has_all_of(earlier.as_ref(), *id) {
            fs::remove_dir_all(staged)?;
            return Ok(vec![]);
        }
        let change = place::CodeChange::new(&self.work_dir, new, earlier.as_ref());
        if let Some(path) = change.obstacle() {
            return Err(CodeRequestError::InTheWay(path));
        }
        self.record.write(&earlier.clone().unwrap_or_default().begin(new))?;
        let said = change.apply(&staged)?;
        self.record.write(&PlacedCode::complete(Manifest::clone(new)))?;
        Ok(said)
    }

    /// Locks the working directory. If another agent has put other code there, forgets the code of this agent.
    fn locked(&mut self) -> io::Result<File> {
        let lock = self.record.lock()?;
        let is_here = |code: &Code| self.earlier().is_some_and(|placed| placed.is(code.id));
        if !self.placed.as_ref().is_none_or(is_here) {
            self.placed = None;
        }
        Ok(lock)
    }

    /// The code in the working directory. An earlier agent, or another agent, may have put it there. `None` if no code
    /// was put there.
    fn earlier(&self) -> Option<PlacedCode> {
        let known = || self.placed.as_ref().map(|code| PlacedCode::complete(Manifest::clone(&code.manifest)));
        match PlacedCode::read(&self.work_dir) {
            Ok(placed) => placed.or_else(known),
            Err(error) => {
                warn!(%error, "the record of the code in the working directory cannot be read");
                Some(known().unwrap_or_default())
            }
        }
    }

    /// Whether this code is in the working directory already, if the record is `placed`. Files that a script has changed
    /// since then stay as they are.
    fn has_all_of(&self, placed: Option<&PlacedCode>, id: CodeId) -> bool {
        let code = placed.filter(|placed| placed.is(id)).and_then(|placed| placed.code.as_ref());
        code.is_some_and(|code| has_all_files(&self.work_dir, code))
    }

    /// Finds the files of this code: at their paths in the working directory, or in the folder for staged code. Reads
    /// no file.
    ///
    /// # Errors
    /// [`CodeRequestError::Missing`].
    pub fn held(&self, id: CodeId) -> Result<HeldFiles, CodeRequestError> {
        let staged = self.folder("staged");
        if let Some(Code { manifest, .. }) = self.placed.as_ref().filter(|code| code.id == id) {
            return Ok(HeldFiles::new(Arc::clone(manifest), |_, file| self.work_dir.join(file.path.as_str())));
        }
        match self.staged.as_ref().filter(|code| code.id == id) {
            Some(Code { manifest, .. }) => {
                Ok(HeldFiles::new(Arc::clone(manifest), |index, _| staged.join(index.to_string())))
            }
            None => Err(CodeRequestError::Missing(id)),
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
        let earlier = self.earlier().unwrap_or_default();
        for file in earlier.files().filter(|file| blobs.contains_key(&file.sha256)) {
            let (from, to) = (self.work_dir.join(file.path.as_str()), folder.join(file.sha256.to_string()));
            // The script may have changed this file.
            if !to.exists() && has_content(&from, file.sha256, file.size) {
                let unfinished = folder.join(UNFINISHED);
                fs::copy(from, &unfinished)?;
                fs::rename(unfinished, to)?;
            }
        }
        Ok(())
    }

    /// Stages the incoming code if it is complete. The first code is put in place at once, so that a warm interpreter
    /// can read it. If other code is in the working directory, the new code waits for the next start, because scripts of
    /// other agents may use the present code.
    fn complete(&mut self) -> Result<MissingBlobs, CodeRequestError> {
        let Some(code) = &self.incoming else { return Ok(MissingBlobs::default()) };
        let (id, folder) = (code.id, self.folder("incoming"));
        let blobs = code.manifest.blobs().into_iter();
        // A crash or a broken disk may have damaged a received blob. A file that cannot be read counts as damaged.
        let has = |blob: Sha256, size: u64| has_content(&folder.join(blob.to_string()), blob, size);
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
        let is_same = |placed: &PlacedCode| placed.code.as_ref().is_some_and(|code| code.id() == id);
        if self.placed.is_none() && self.earlier().as_ref().is_none_or(is_same) {
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

/// Writes blobs to files as they arrive.
struct Incoming {
    folder: PathBuf,
    reader: BlobReader,
    file: Option<File>,
}

impl Incoming {
    fn take(&mut self, mut part: &[u8]) -> Result<(), CodeRequestError> {
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
