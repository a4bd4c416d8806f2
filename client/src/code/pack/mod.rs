//! Packs the files that a job brings: finds and reads them, and makes their manifest. If a file changes later, the
//! client still sends the content that was read here.

mod read;
mod rules;
mod walk;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use protocol::code::{
    BadManifest, CODE_BYTES_MAX, CODE_FILES_MAX, CodeFile, CodeId, CodePath, Manifest, ScriptPath, Sha256,
};

use self::read::Contents;
use self::walk::Found;
pub(crate) use self::walk::{Listing, Scope};
use crate::ending::error::{Cause, Error};
use crate::output::size;
use crate::request::script::no_script;

/// Maximum number of files and folders that the error about too many or too large files names.
const LARGEST_NAMED: usize = 3;

const NAME_FOLDER: &str = "give the folder that contains the job's script";
const LEAVE_OUT: &str = "list in .musterignore what the job does not need, and mount data with --volume";

/// An error about the files of a job, for [`Cause::Files`].
pub(crate) fn wrong_files(sentence: impl Into<String>) -> Error {
    Error::input(sentence).cause(Cause::Files)
}

/// The error for a file or folder that cannot be read, or that vanished while it was read.
fn unreadable(path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| wrong_files(format!("read {} for the job", path.display())).because(error)
}

/// Maximum number of files and folders that are named in one sentence.
const NAMED_MAX: usize = 5;
/// Names of files that usually contain secrets.
const SECRETS: [&str; 6] = [".env", ".netrc", ".pypirc", ".git-credentials", "id_rsa", "id_ed25519"];

/// The error of a manifest, for example because of two paths that differ only in case.
fn wrong_manifest(error: &BadManifest) -> Error {
    wrong_files(error.to_string()).hint("rename one of the files, or exclude it with a pattern in .musterignore")
}

/// The files of a job.
#[derive(Debug)]
pub(crate) struct Packed {
    manifest: Manifest,
    contents: Contents,
    /// The files and folders that a .gitignore leaves out.
    left_out: Vec<String>,
}

impl Packed {
    /// Packs a folder, which must contain the script. Blocks.
    pub(crate) fn read(folder: &Path, script: &ScriptPath) -> Result<Self, Error> {
        Self::of(&Listing::of(folder, Scope::Job)?, script)
    }

    /// Packs the listed files, which must include the script. Blocks.
    pub(crate) fn of(Listing { root, files, left_out, .. }: &Listing, script: &ScriptPath) -> Result<Self, Error> {
        check_limits(root, files)?;
        let (files, contents) = read::all(files)?;
        let manifest = Manifest::new(files).map_err(|error| wrong_manifest(&error))?;
        if manifest.has(script) {
            return Ok(Self { manifest, contents, left_out: left_out.clone() });
        }
        Err(if root.join(script.as_str()).exists() {
            let sentence = format!("{script} is left out of the files of {}", root.display());
            let hint = "check .musterignore; without this file, .dockerignore; without both, .gitignore";
            wrong_files(sentence).hint(hint)
        } else {
            no_script(script, root).hint(NAME_FOLDER).cause(Cause::Files)
        })
    }

    /// Packs files that are in memory.
    pub(crate) fn in_memory(files: Vec<(CodePath, Vec<u8>)>) -> Result<Self, Error> {
        let mut contents = Contents::new();
        let listed = files.into_iter().map(|(path, content)| {
            let file = CodeFile { path, sha256: Sha256::of(&content), size: content.len() as u64, executable: false };
            contents.insert(file.sha256, content);
            file
        });
        let manifest = Manifest::new(listed.collect()).map_err(|error| wrong_manifest(&error))?;
        Ok(Self { manifest, contents, left_out: Vec::new() })
    }

    /// The id of the code.
    pub(crate) fn id(&self) -> CodeId {
        self.manifest.id()
    }

    /// The manifest of the files.
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A sentence about the files and folders that a .gitignore leaves out: a script may need its data or its `.env`.
    pub(crate) fn left_out(&self) -> Option<String> {
        let (named, others) = self.left_out.split_at(self.left_out.len().min(NAMED_MAX));
        let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        let what = format!("left out by .gitignore: {}{others}", named.join(", "));
        (!named.is_empty()).then(|| format!("{what} (a .musterignore replaces .gitignore)"))
    }

    /// A sentence about files that usually contain secrets.
    pub(crate) fn secrets(&self) -> Option<String> {
        let name = |path: &str| path.rsplit('/').next().is_some_and(|name| SECRETS.contains(&name));
        let paths = self.manifest.files().iter().map(|file| file.path.as_str());
        let named = paths.filter(|path| name(path)).take(NAMED_MAX).collect::<Vec<_>>().join(", ");
        let cure = "everyone who can read the job's code can read it; a line in .musterignore leaves it out";
        (!named.is_empty()).then(|| format!("the code contains {named}: {cure}"))
    }

    /// The Python source files, with their contents.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let sources = self.manifest.files().iter().filter(|file| file.path.as_str().ends_with(".py"));
        sources.map(|file| (file.path.as_str(), self.contents[&file.sha256].as_slice()))
    }

    /// Makes the stream of these blobs. Leaves out blobs that this code does not have. Also returns the number of blobs
    /// in the stream.
    pub(crate) fn stream(&self, blobs: &[Sha256]) -> (usize, Vec<u8>) {
        let ours: Vec<_> = blobs.iter().filter_map(|blob| self.contents.get_key_value(blob)).collect();
        let bytes = ours.iter().map(|(_, content)| Sha256::BYTES + content.len()).sum();
        let mut stream = Vec::with_capacity(bytes);
        for (blob, content) in &ours {
            stream.extend_from_slice(blob.as_bytes());
            stream.extend_from_slice(content);
        }
        (ours.len(), stream)
    }
}

fn check_limits(folder: &Path, found: &[Found]) -> Result<(), Error> {
    let bytes = found.iter().map(|file| file.size).sum();
    if found.len() <= CODE_FILES_MAX && bytes <= CODE_BYTES_MAX {
        return Ok(());
    }
    let by_size = bytes > CODE_BYTES_MAX;
    let largest = largest(found, |size| if by_size { size } else { 1 });
    let sentence = format!(
        "{} has {} files with {}; a job brings at most {CODE_FILES_MAX} files with {} (largest: {})",
        folder.display(),
        found.len(),
        size(bytes),
        size(CODE_BYTES_MAX),
        largest.join(", ")
    );
    Err(wrong_files(sentence).hint(LEAVE_OUT))
}

/// The heaviest files and folders directly in the packed folder. A folder weighs as much as all its files.
fn largest(found: &[Found], weight: impl Fn(u64) -> u64) -> Vec<String> {
    let mut weights: BTreeMap<String, u64> = BTreeMap::new();
    for Found { path, size, .. } in found {
        let first = path.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
        *weights.entry(first.unwrap_or_default()).or_default() += weight(*size);
    }
    let mut names: Vec<_> = weights.into_iter().collect();
    names.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    names.into_iter().take(LARGEST_NAMED).map(|(name, _)| name).collect()
}

#[cfg(test)]
#[path = "pack_tests.rs"]
mod tests;
