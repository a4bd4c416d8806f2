//! Finds the script that a command line names, and the folder whose files the job brings.

use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use protocol::code::{BadCodePath, ScriptPath};

use crate::args::CodeArgs;
use crate::ending::error::Error;

/// The error if the folder does not contain the script to run.
pub(crate) fn no_script(script: &ScriptPath, folder: &Path) -> Error {
    Error::input(format!("no {script} in {}", folder.display()))
}

/// A script that the command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The folder that is sent, an absolute path without links.
    pub(crate) folder: PathBuf,
    /// The script's path in the folder.
    pub(crate) script: ScriptPath,
    /// The current folder, if the command line names a script outside of it and no folder.
    here: Option<PathBuf>,
}

impl Named {
    /// The folders that a master must see if nothing is sent: that of the script, and the current folder if it is another.
    pub(crate) fn folders_in_place(&self) -> impl Iterator<Item = &Path> {
        iter::once(self.folder.as_path()).chain(self.here.as_deref())
    }

    /// The working folder and the script of the job if nothing is sent: as with `python SCRIPT`, the script runs in the
    /// current folder. If the command line names a folder, the script runs there.
    pub(crate) fn in_place(&self) -> Result<(PathBuf, ScriptPath), Error> {
        let Self { folder, script, here } = self;
        let Some(here) = here else { return Ok((folder.clone(), script.clone())) };
        let path = folder.join(script.as_str());
        Ok((here.clone(), path.to_string_lossy().parse().map_err(|error| bad_name(&error))?))
    }
}

/// Finds the script. `None` if the command line names neither a script nor a folder.
pub(crate) fn find(args: &CodeArgs, here: &Path) -> Result<Option<Named>, Error> {
    let folder = args.code.as_deref().map(|code| named_folder(&here.join(code))).transpose()?;
    match (args.script.as_ref().map(|script| here.join(script)), folder) {
        (None, None) if args.snapshot => only_script(real(here)?).map(Some),
        (None, None) => Ok(None),
        (None, Some(folder)) => only_script(folder).map(Some),
        (Some(path), None) if path.is_dir() => only_script(real(&path)?).map(Some),
        (Some(path), Some(_)) if path.is_dir() => Err(Error::input(format!(
            "{} is a folder, and --code names a folder too: name the script in the folder of --code",
            path.display()
        ))),
        (Some(path), folder) => named_script(&path, folder, here).map(Some),
    }
}

fn named_folder(path: &Path) -> Result<PathBuf, Error> {
    let folder = real(path)?;
    if folder.is_dir() { Ok(folder) } else { Err(Error::input(format!("--code {} is not a folder", path.display()))) }
}

fn real(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(not_found(path))
}

/// The error for a script or folder that does not exist, or that cannot be read.
fn not_found(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::input(format!("find {}", path.display())).because(error)
}

/// The default script of a folder.
fn only_script(folder: PathBuf) -> Result<Named, Error> {
    let script = ScriptPath::default();
    if folder.join(script.as_str()).is_file() {
        Ok(Named { folder, script, here: None })
    } else {
        Err(no_script(&script, &folder).hint("name the script too, for example client ./project/train.py"))
    }
}

/// Finds the script at this path. The job's folder is the folder that `--code` names. Without `--code`, the job's
/// folder is the current folder if the current folder contains the script at any depth, else the folder that contains
/// the script.
fn named_script(path: &Path, folder: Option<PathBuf>, here: &Path) -> Result<Named, Error> {
    path.metadata().map_err(not_found(path))?;
    // If the script itself is a link, the job uses the name of the link.
    let parent = real(path.parent().unwrap_or(Path::new("/")))?;
    let place = parent.join(path.file_name().unwrap_or_default());
    let here = real(here)?;
    let is_outside = folder.is_none() && !place.starts_with(&here);
    let folder = folder.unwrap_or_else(|| if is_outside { parent } else { here.clone() });
    let Ok(script) = place.strip_prefix(&folder) else {
        let sentence = format!("{} is not in the folder {}", path.display(), folder.display());
        let hint = "name the script by its path from the current folder, or give another --code";
        return Err(Error::input(sentence).hint(hint));
    };
    let script = script.to_string_lossy().parse().map_err(|error| bad_name(&error))?;
    Ok(Named { script, folder, here: is_outside.then_some(here) })
}

/// The error for a script whose name cannot be sent.
pub(super) fn bad_name(error: &BadCodePath) -> Error {
    Error::input(format!("the script's name is not allowed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(here: &Path, script: Option<&str>, code: Option<&str>) -> Result<Option<(PathBuf, String)>, String> {
        let args = CodeArgs { script: script.map(Into::into), code: code.map(Into::into), ..CodeArgs::default() };
        let named = find(&args, here).map_err(|error| error.to_string())?;
        Ok(named.map(|Named { folder, script, .. }| (folder, script.to_string())))
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
        let in_place = |script: &str, code: Option<&str>| {
            let args = CodeArgs { script: Some(script.into()), code: code.map(Into::into), ..CodeArgs::default() };
            let (folder, script) = find(&args, &here).unwrap().unwrap().in_place().unwrap();
            (folder, script.to_string())
        };
        let outside = root.join("other/a.py").to_str().unwrap().to_owned();
        assert_eq!(in_place("../other/a.py", None), (here.clone(), outside));
        assert_eq!(in_place("../other/a.py", Some("../other")), (root.join("other"), "a.py".to_owned()));
        assert_eq!(in_place("../other", None), (root.join("other"), "exec.py".to_owned()));
        assert_eq!(in_place("src/train.py", None), (here.clone(), "src/train.py".to_owned()));
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
