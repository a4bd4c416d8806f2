//! The record of which code is in a working directory. Agents write it, so that they know which files a script has
//! changed, even if another agent has put the code there. A master reads it in the working directories of its own host.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use protocol::code::{CodeFile, CodeId, Hasher, Manifest, OWN_FOLDER, Sha256};
use serde::{Deserialize, Serialize};

/// Which code is in a working directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedCode {
    /// The last code that was put in place completely. `None` if there is no such code, or if it is unknown.
    pub code: Option<Manifest>,
    /// Code that was put in place later, perhaps not completely. Some files may be of this code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begun: Vec<Manifest>,
}

impl PlacedCode {
    /// The state after this code was put in place.
    pub fn complete(code: Manifest) -> Self {
        Self { code: Some(code), begun: vec![] }
    }

    /// The state while this code is being put in place.
    pub fn begin(mut self, code: &Manifest) -> Self {
        if !self.begun.contains(code) {
            self.begun.push(code.clone());
        }
        self
    }

    /// The file of the record.
    fn file(work_dir: &Path) -> PathBuf {
        work_dir.join(OWN_FOLDER).join("placed.json")
    }

    /// Reads the record. `None` if there is no record.
    ///
    /// # Errors
    /// There is a record, but it cannot be read, or it is not valid.
    pub fn read(work_dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(Self::file(work_dir)) {
            Ok(json) => Ok(Some(serde_json::from_slice(&json)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether this code, and no other code, is in the directory.
    pub fn is(&self, id: CodeId) -> bool {
        self.begun.is_empty() && self.code.as_ref().is_some_and(|code| code.id() == id)
    }

    /// The files of all code in the record.
    pub fn files(&self) -> impl Iterator<Item = &CodeFile> {
        self.code.iter().chain(&self.begun).flat_map(Manifest::files)
    }

    /// The contents that were delivered.
    pub fn delivered(&self) -> Delivered<'_> {
        let mut delivered = Delivered::default();
        for file in self.files() {
            delivered.0.entry(file.path.as_str()).or_default().push(file);
        }
        delivered
    }
}

/// All contents that were delivered, by path.
#[derive(Debug, Default)]
pub struct Delivered<'a>(BTreeMap<&'a str, Vec<&'a CodeFile>>);

impl<'a> Delivered<'a> {
    /// The paths for which a content was delivered.
    pub fn paths(&self) -> impl Iterator<Item = &'a str> {
        self.0.keys().copied()
    }

    /// Whether the file at this path has a content that was delivered for this path. Otherwise a script has written the
    /// file.
    pub fn has(&self, work_dir: &Path, path: &str) -> bool {
        let files = self.0.get(path).into_iter().flatten();
        files.into_iter().any(|file| has_content(&work_dir.join(path), file.sha256, file.size))
    }
}

/// Whether `path` is a regular file with this content. Reads the whole file if its size in bytes is right. False for a
/// file that cannot be read.
pub fn has_content(path: &Path, content: Sha256, size: u64) -> bool {
    // Opening a FIFO would wait for its writer.
    let is_possible = fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == size);
    is_possible && content_of(path).is_ok_and(|found| found == content)
}

fn content_of(path: &Path) -> io::Result<Sha256> {
    let (mut file, mut hasher, mut buffer) = (File::open(path)?, Hasher::default(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            length => hasher.update(&buffer[..length]),
        }
    }
}

/// The record of the code in one working directory.
#[derive(Debug)]
pub struct Record {
    work_dir: PathBuf,
}

impl Record {
    /// The record in this directory.
    pub fn new(work_dir: PathBuf) -> Self {
        Self { work_dir }
    }

    /// Waits until no other agent changes this working directory. Dropping the file releases the lock.
    pub fn lock(&self) -> io::Result<File> {
        let folder = self.work_dir.join(OWN_FOLDER);
        fs::create_dir_all(&folder)?;
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Writes the record completely or not at all, even if the machine loses its power.
    pub fn write(&self, placed: &PlacedCode) -> io::Result<()> {
        let unfinished = self.work_dir.join(OWN_FOLDER).join("placed.new");
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(placed)?)?;
        file.sync_all()?;
        fs::rename(unfinished, PlacedCode::file(&self.work_dir))
    }
}

/// Whether each file of the code exists, with any content.
pub fn has_all_files(work_dir: &Path, code: &Manifest) -> bool {
    code.files().iter().all(|file| fs::symlink_metadata(work_dir.join(file.path.as_str())).is_ok())
}
