//! Why a folder cannot be packed.

use std::io;
use std::path::PathBuf;

use protocol::code::{BadCodePath, BadManifest, CODE_BYTES_MAX, CODE_FILES_MAX, ScriptPath};

use crate::output::size;
use crate::request::script::NoScript;

/// Why a folder cannot be packed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    /// The job's script has a syntax error.
    #[error("the script does not parse: {0}")]
    DoesNotParse(String),
    /// A file or folder cannot be read, or vanished while it was read.
    #[error("read {} for the job", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The path is not a folder.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// A job cannot have a file with this name.
    #[error("a file in {} cannot be sent: {wrong}", folder.display())]
    Name { folder: PathBuf, wrong: BadCodePath },
    /// A file's name is not valid UTF-8.
    #[error("a file in {} cannot be sent: {name} is not valid UTF-8", folder.display())]
    NotUnicode { folder: PathBuf, name: String },
    /// A link leads out of the folder.
    #[error("{} is a link to {}, outside the folder", link.display(), target.display())]
    LinkOutside { link: PathBuf, target: PathBuf },
    /// A link leads to itself, or to a folder that contains it.
    #[error("{} is a link to itself, or to a folder that contains it", .0.display())]
    LinkLoop(PathBuf),
    /// A file of patterns has an invalid line.
    #[error("{}: {wrong}", file.display())]
    Pattern { file: PathBuf, wrong: String },
    /// There are too many files and folders to list.
    #[error("{} has more than {most} files and folders; a job brings at most {CODE_FILES_MAX} files", folder.display())]
    TooMany { folder: PathBuf, most: usize },
    /// There are too many files, or all files together are too large.
    #[error(
        "{} has {files} files with {}; a job brings at most {CODE_FILES_MAX} files with {} (largest: {})",
        folder.display(), size(*bytes), size(CODE_BYTES_MAX), largest.join(", ")
    )]
    TooLarge { folder: PathBuf, files: usize, bytes: u64, largest: Vec<String> },
    /// Because files grew, the bytes that were read exceed the limit. The path is that of the file that was read last.
    #[error("the job's files grew beyond {} while they were read (last file: {})", size(CODE_BYTES_MAX), .0.display())]
    Grew(PathBuf),
    /// The files do not make a valid manifest, for example because of two paths that differ only in case.
    #[error(transparent)]
    Manifest(#[from] BadManifest),
    /// A pattern leaves the script out.
    #[error("{script} is left out of the files of {}", folder.display())]
    LeftOut { script: ScriptPath, folder: PathBuf },
    /// The folder does not contain the script.
    #[error(transparent)]
    NoScript(#[from] NoScript),
}

impl PackError {
    /// Whether a file or folder was removed after it was listed and before it was read.
    pub(crate) fn is_of_vanished_file(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// The next step for the user.
    pub(crate) fn hint(&self) -> Option<String> {
        let leave_out = "exclude it with a pattern in .musterignore";
        let hint = match self {
            Self::Name { .. } | Self::NotUnicode { .. } => format!("rename the file, or {leave_out}"),
            Self::LinkOutside { .. } | Self::LinkLoop(_) => format!("put a copy in place of the link, or {leave_out}"),
            Self::TooMany { .. } | Self::TooLarge { .. } | Self::Grew(_) => {
                "list in .musterignore what the job does not need, and mount data with --volume".to_owned()
            }
            Self::Manifest(_) => format!("rename one of the files, or {leave_out}"),
            Self::NoScript(_) | Self::NotAFolder(_) => "give the folder that contains the job's script".to_owned(),
            Self::LeftOut { .. } => {
                "check .musterignore; without this file, .dockerignore; without both, .gitignore".to_owned()
            }
            Self::DoesNotParse(_) => {
                "if the job's Python is newer than this machine's, skip this check: push with --force, or submit with --no-syntax-check".to_owned()
            }
            Self::Read { .. } | Self::Pattern { .. } => return None,
        };
        Some(hint)
    }
}
