//! The code that a job brings: its files as a manifest, the manifest's id, and the limits. Client, master and agent
//! check a manifest with [`Manifest::new`], so all three programs accept the same manifests.

mod blobs;
mod path;
mod syntax;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::Digest;

pub use self::blobs::{BlobError, BlobPart, BlobReader};
pub use self::path::{BadCodePath, CodePath, SCRIPT, ScriptPath};
pub use self::syntax::{CHECK_SYNTAX, DOES_NOT_PARSE, syntax_input};
use crate::as_text::serde_as_string;
use crate::ensure::ensure;

/// The folder for Muster's own files in a working directory. Paths of code in this folder are invalid.
pub const OWN_FOLDER: &str = ".muster";
/// Maximum bytes of all files together.
pub const CODE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum number of files.
pub const CODE_FILES_MAX: usize = 20_000;
/// Maximum bytes of a manifest's JSON.
pub const MANIFEST_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The SHA-256 of a blob, which is the content of a file. As text: 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256([u8; Sha256::BYTES]);

/// The text is not a [`Sha256`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a SHA-256: use 64 lower-case hexadecimal digits")]
pub struct BadSha256(String);

impl Sha256 {
    /// Number of bytes.
    pub const BYTES: usize = 32;

    /// The SHA-256 of `content`.
    pub fn of(content: &[u8]) -> Self {
        Self(sha2::Sha256::digest(content).into())
    }

    /// The digest itself.
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl FromStr for Sha256 {
    type Err = BadSha256;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadSha256(text.chars().take(80).collect());
        if text.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(bad());
        }
        let bytes = hex::decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

serde_as_string!(Sha256);

/// Computes the SHA-256 of content that arrives in parts.
#[derive(Debug, Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Adds the next part.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// The SHA-256 of all parts.
    pub fn finish(self) -> Sha256 {
        Sha256(self.0.finalize().into())
    }
}

/// The id of a job's code: the SHA-256 of a text with one line for each file, see [`Manifest::id`]. If all paths,
/// contents and modes are equal, the ids are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CodeId(Sha256);

impl FromStr for CodeId {
    type Err = BadSha256;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for CodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

serde_as_string!(CodeId);

/// One file of a job's code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CodeFile {
    /// The file's path in the job's folder.
    pub path: CodePath,
    /// The SHA-256 of the content.
    pub sha256: Sha256,
    /// The length of the content, in bytes.
    pub size: u64,
    /// Whether the file is executable: mode 0755, otherwise 0644.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// All files of a job's code, in the order of their paths. All are regular files: a manifest cannot describe links,
/// devices or empty folders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(try_from = "ManifestWire")]
pub struct Manifest {
    #[cfg_attr(feature = "openapi", schema(max_items = 20_000))]
    files: Vec<CodeFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestWire {
    files: Vec<CodeFile>,
}

/// Why files cannot be the code of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadManifest {
    /// There are too many files.
    #[error("the code has {0} files; the maximum is {CODE_FILES_MAX}")]
    TooManyFiles(usize),
    /// The files are too large together.
    #[error("the code has {0} bytes; the maximum is {CODE_BYTES_MAX}")]
    TooLarge(u64),
    /// Two files have the same path. Upper and lower case count as equal.
    #[error("\"{0}\" and \"{1}\" are the same path if upper and lower case do not matter")]
    SamePath(CodePath, CodePath),
    /// A path is a file and also the folder of another file. Upper and lower case count as equal.
    #[error("\"{0}\" is a file, and \"{1}\" needs a folder of that name")]
    FileAndFolder(CodePath, CodePath),
    /// Two files have the same SHA-256 and different sizes.
    #[error("the size of \"{0}\" differs from that of another file with the same SHA-256")]
    SizesDiffer(CodePath),
}

impl TryFrom<ManifestWire> for Manifest {
    type Error = BadManifest;

    fn try_from(wire: ManifestWire) -> Result<Self, Self::Error> {
        Self::new(wire.files)
    }
}

impl Manifest {
    /// Sorts the files and checks them together.
    pub fn new(mut files: Vec<CodeFile>) -> Result<Self, BadManifest> {
        ensure!(files.len() <= CODE_FILES_MAX, BadManifest::TooManyFiles(files.len()));
        let bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size));
        ensure!(bytes <= CODE_BYTES_MAX, BadManifest::TooLarge(bytes));
        files.sort_by(|one, other| one.path.cmp(&other.path));
        check_paths(&files)?;
        let manifest = Self { files };
        let blobs = manifest.blobs();
        match manifest.files.iter().find(|file| blobs.get(&file.sha256) != Some(&file.size)) {
            Some(file) => Err(BadManifest::SizesDiffer(file.path.clone())),
            None => Ok(manifest),
        }
    }

    /// The files, in the order of their paths.
    pub fn files(&self) -> &[CodeFile] {
        &self.files
    }

    /// The blobs of the files, each once, with the blob's length in bytes.
    pub fn blobs(&self) -> BTreeMap<Sha256, u64> {
        self.files.iter().map(|file| (file.sha256, file.size)).collect()
    }

    /// The file with this path.
    pub fn file(&self, path: &CodePath) -> Option<&CodeFile> {
        self.file_at(path.as_str())
    }

    /// Whether this script is one of the files.
    pub fn has(&self, script: &ScriptPath) -> bool {
        self.file_at(script.as_str()).is_some()
    }

    fn file_at(&self, path: &str) -> Option<&CodeFile> {
        self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|index| &self.files[index])
    }

    /// The id: the SHA-256 of a text with one line for each file, `SHA256 SIZE MODE PATH` with the mode `x` or `-`. No
    /// path contains a line break, so two manifests with the same text are equal.
    pub fn id(&self) -> CodeId {
        let mut hasher = Hasher::default();
        for CodeFile { path, sha256, size, executable } in &self.files {
            let mode = if *executable { 'x' } else { '-' };
            hasher.update(format!("{sha256} {size} {mode} {path}\n").as_bytes());
        }
        CodeId(hasher.finish())
    }
}

/// Checks that files with these paths can exist together, even on file systems where case does not matter.
fn check_paths(files: &[CodeFile]) -> Result<(), BadManifest> {
    let mut folded: BTreeMap<String, &CodePath> = BTreeMap::new();
    for CodeFile { path, .. } in files {
        if let Some(other) = folded.insert(path.folded(), path) {
            return Err(BadManifest::SamePath(other.clone(), path.clone()));
        }
    }
    for (name, path) in &folded {
        let mut folders = name.match_indices('/').map(|(end, _)| &name[..end]);
        if let Some(file) = folders.find_map(|folder| folded.get(folder)) {
            return Err(BadManifest::FileAndFolder((*file).clone(), (*path).clone()));
        }
    }
    Ok(())
}

/// The answer to a request with a manifest, and to a request with blobs: which blobs of the code are still missing at
/// the receiver. The list is empty if the receiver has the whole code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MissingBlobs {
    /// The blobs to send.
    pub missing: Vec<Sha256>,
}
