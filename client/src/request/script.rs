//! Finds the script that a command line names, and the folder whose files the job brings.

use std::io;
use std::path::{Path, PathBuf};

use protocol::code::{BadCodePath, ScriptPath};

use crate::args::CodeArgs;

/// The folder does not contain the script to run.
#[derive(Debug, thiserror::Error)]
#[error("no {script} in {}", folder.display())]
pub(crate) struct NoScript {
    pub(crate) script: ScriptPath,
    pub(crate) folder: PathBuf,
}

/// Why there is no script to run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScriptError {
    /// The script or folder does not exist, or cannot be read.
    #[error("find {}", path.display())]
    NotFound { path: PathBuf, source: io::Error },
    /// --code names a file.
    #[error("--code {} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// Instead of a script, a folder is given, and --code names a folder too.
    #[error("{} is a folder, and --code names a folder too: name the script in the folder of --code", .0.display())]
    TwoFolders(PathBuf),
    /// The script is not in the folder of --code.
    #[error("{} is not in the folder {}", script.display(), folder.display())]
    Elsewhere { script: PathBuf, folder: PathBuf },
    /// The folder has no such script.
    #[error(transparent)]
    Missing(#[from] NoScript),
    /// The script's name cannot be sent.
    #[error("the script's name is not allowed: {0}")]
    Name(#[from] BadCodePath),
}

impl ScriptError {
    /// The next step for the user.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Missing(_) => "name the script too, for example client ./project/train.py",
            Self::Elsewhere { .. } => "name the script by its path from the current folder, or give another --code",
            Self::NotFound { .. } | Self::NotAFolder(_) | Self::TwoFolders(_) | Self::Name(_) => return None,
        };
        Some(hint.to_owned())
    }
}

/// A script that the command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The folder of the job, an absolute path without links.
    pub(crate) folder: PathBuf,
    /// The script's path in the folder.
    pub(crate) script: ScriptPath,
}

/// Finds the script. `None` if the command line names neither a script nor a folder.
pub(crate) fn find(args: &CodeArgs, here: &Path) -> Result<Option<Named>, ScriptError> {
    let folder = args.code.as_deref().map(|code| named_folder(&here.join(code))).transpose()?;
    match (args.script.as_ref().map(|script| here.join(script)), folder) {
        (None, None) => Ok(None),
        (None, Some(folder)) => only_script(folder).map(Some),
        (Some(path), None) if path.is_dir() => only_script(real(&path)?).map(Some),
        (Some(path), Some(_)) if path.is_dir() => Err(ScriptError::TwoFolders(path)),
        (Some(path), folder) => named_script(&path, folder, here).map(Some),
    }
}

fn named_folder(path: &Path) -> Result<PathBuf, ScriptError> {
    let folder = real(path)?;
    if folder.is_dir() { Ok(folder) } else { Err(ScriptError::NotAFolder(path.to_owned())) }
}

fn real(path: &Path) -> Result<PathBuf, ScriptError> {
    path.canonicalize().map_err(|source| ScriptError::NotFound { path: path.to_owned(), source })
}

/// The default script of a folder.
fn only_script(folder: PathBuf) -> Result<Named, ScriptError> {
    let script = ScriptPath::default();
    if folder.join(script.as_str()).is_file() {
        Ok(Named { folder, script })
    } else {
        Err(NoScript { script, folder }.into())
    }
}

/// Finds the script at this path. The job's folder is that of `--code`. Without `--code`, the job's folder is the
/// current folder if the current folder contains the script at any depth, else the folder that contains the script.
fn named_script(path: &Path, folder: Option<PathBuf>, here: &Path) -> Result<Named, ScriptError> {
    path.metadata().map_err(|source| ScriptError::NotFound { path: path.to_owned(), source })?;
    // If the script itself is a link, the job uses the name of the link.
    let parent = real(path.parent().unwrap_or(Path::new("/")))?;
    let place = parent.join(path.file_name().unwrap_or_default());
    let folder = match folder {
        Some(folder) => folder,
        None => Some(real(here)?).filter(|here| place.starts_with(here)).unwrap_or(parent),
    };
    match place.strip_prefix(&folder) {
        Ok(script) => Ok(Named { script: script.to_string_lossy().parse()?, folder }),
        Err(_) => Err(ScriptError::Elsewhere { script: path.to_owned(), folder }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(here: &Path, script: Option<&str>, code: Option<&str>) -> Result<Option<(PathBuf, String)>, String> {
        let args = CodeArgs { script: script.map(Into::into), code: code.map(Into::into), ..CodeArgs::default() };
        let named = find(&args, here).map_err(|error| error.to_string())?;
        Ok(named.map(|Named { folder, script }| (folder, script.to_string())))
    }

    #[test]
    fn a_job_brings_the_folder_of_the_flag_else_the_current_folder_else_that_of_the_script() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let here = root.join("here");
        for file in ["here/src/train.py", "here/exec.py", "other/exec.py", "other/a.py"] {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), "").unwrap();
        }
        let is = |folder: &str, script: &str| Ok(Some((root.join(folder), script.to_owned())));
        assert_eq!(found(&here, None, None), Ok(None));
        assert_eq!(found(&here, Some("."), None), is("here", "exec.py"));
        assert_eq!(found(&here, Some("src/train.py"), None), is("here", "src/train.py"));
        assert_eq!(found(&here, Some("./src/../exec.py"), None), is("here", "exec.py"));
        assert_eq!(found(&here, Some("../other/a.py"), None), is("other", "a.py"));
        assert_eq!(found(&here, Some("../other/"), None), is("other", "exec.py"));
        assert_eq!(found(&here, Some("src/train.py"), Some("src")), is("here/src", "train.py"));
        assert_eq!(found(&here, Some("src/train.py"), Some("..")), is("", "here/src/train.py"));
        assert_eq!(found(&here, None, Some("../other")), is("other", "exec.py"));
        for (script, code, wrong) in [
            (Some("src/"), None, "no exec.py in "),
            (Some("none.py"), None, "find "),
            (Some("exec.py"), Some("src"), "/exec.py is not in the folder "),
            (Some("src/"), Some("."), " is a folder, and --code names a folder too"),
            (None, Some("exec.py"), "--code "),
            (None, Some("none"), "find "),
        ] {
            let error = found(&here, script, code).unwrap_err();
            assert!(error.contains(wrong), "{script:?} {code:?}: {error}");
        }
    }
}
