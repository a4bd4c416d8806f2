//! The rules that leave files out: names that are never sent, and the patterns of one file. This file is .musterignore
//! if it exists in the folder, else .dockerignore, else .gitignore. For .musterignore and .gitignore, git's rules
//! apply: the patterns of a file are used in the folder of that file and in all folders below. The deepest file with a
//! matching pattern decides.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use protocol::code::OWN_FOLDER;

use super::{unreadable, wrong_files};
use crate::code::ignored::Ignored;
use crate::ending::error::Error;

/// Names of files and folders that no job needs.
const NEVER_SENT: [&str; 4] = [".git", "__pycache__", ".venv", "venv"];
const MUSTERIGNORE: &str = ".musterignore";
const DOCKERIGNORE: &str = ".dockerignore";
const GITIGNORE: &str = ".gitignore";

/// The rules of one folder to pack.
pub(super) struct FolderRules {
    folder: PathBuf,
    kind: PatternKind,
}

enum PatternKind {
    Docker(Ignored),
    /// The patterns of the files with this name, from the outermost folder to the current folder.
    Git(&'static str, Vec<Option<Gitignore>>),
}

impl FolderRules {
    pub(super) fn of(folder: &Path) -> Result<Self, Error> {
        let kind = if folder.join(MUSTERIGNORE).exists() {
            PatternKind::Git(MUSTERIGNORE, Vec::new())
        } else if let Some(text) = text(&folder.join(DOCKERIGNORE))? {
            let file = folder.join(DOCKERIGNORE);
            let wrong = |line| wrong_files(format!("{}: invalid pattern \"{line}\"", file.display()));
            PatternKind::Docker(Ignored::parse(&text).map_err(wrong)?)
        } else {
            PatternKind::Git(GITIGNORE, of_repository(folder)?)
        };
        Ok(Self { folder: folder.to_owned(), kind })
    }

    /// Enters a folder. `real` is the folder's path on this machine, and `path` is the folder's path in the job.
    pub(super) fn enter(&mut self, real: &Path, path: &Path) -> Result<(), Error> {
        match &mut self.kind {
            PatternKind::Docker(_) => {}
            PatternKind::Git(name, patterns) => patterns.push(patterns_of(&real.join(*name), &self.folder.join(path))?),
        }
        Ok(())
    }

    /// Leaves the folder that was entered last.
    pub(super) fn leave(&mut self) {
        match &mut self.kind {
            PatternKind::Docker(_) => {}
            PatternKind::Git(_, patterns) => drop(patterns.pop()),
        }
    }

    /// Whether the file or folder with this path in the job is left out.
    pub(super) fn leave_out(&self, path: &Path, is_folder: bool) -> bool {
        if is_never_sent(path) {
            return true;
        }
        match &self.kind {
            PatternKind::Docker(ignored) => ignored.leaves_out(path, is_folder),
            PatternKind::Git(_, patterns) => {
                let path = self.folder.join(path);
                let of_file = |patterns: &Gitignore| match patterns.matched(&path, is_folder) {
                    Match::None => None,
                    Match::Ignore(_) => Some(true),
                    Match::Whitelist(_) => Some(false),
                };
                patterns.iter().rev().flatten().find_map(of_file).unwrap_or(false)
            }
        }
    }

    /// Whether a path that is left out is named in a .gitignore. Its author thought of git, and perhaps not of jobs.
    pub(super) fn is_by_git(&self, path: &Path) -> bool {
        matches!(self.kind, PatternKind::Git(GITIGNORE, _)) && !is_never_sent(path)
    }

    /// Whether a folder that is left out may still contain files that are sent.
    pub(super) fn take_back(&self) -> bool {
        match &self.kind {
            PatternKind::Docker(ignored) => ignored.takes_back(),
            PatternKind::Git(..) => false,
        }
    }
}

fn is_never_sent(path: &Path) -> bool {
    path.file_name().is_some_and(|name| NEVER_SENT.iter().any(|never| name == *never)) || path == Path::new(OWN_FOLDER)
}

/// The .gitignore files above a folder of a git repository, the outermost first. Empty outside of a repository.
fn of_repository(folder: &Path) -> Result<Vec<Option<Gitignore>>, Error> {
    let is_top = |folder: &&Path| folder.join(".git").exists();
    let Some(top) = folder.ancestors().find(is_top) else { return Ok(Vec::new()) };
    let mut above: Vec<&Path> = folder.ancestors().skip(1).take_while(|above| above.starts_with(top)).collect();
    above.reverse();
    above.into_iter().map(|folder| patterns_of(&folder.join(GITIGNORE), folder)).collect()
}

/// Reads a file of patterns that apply below `root`. `None` if the file does not exist.
fn patterns_of(file: &Path, root: &Path) -> Result<Option<Gitignore>, Error> {
    let Some(text) = text(file)? else { return Ok(None) };
    let wrong = |error: ignore::Error| wrong_files(format!("{}: {error}", file.display()));
    let mut builder = GitignoreBuilder::new(root);
    for line in text.trim_start_matches('\u{feff}').lines() {
        builder.add_line(None, line).map_err(wrong)?;
    }
    builder.build().map(Some).map_err(wrong)
}

fn text(file: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(file)(error)),
    }
}
