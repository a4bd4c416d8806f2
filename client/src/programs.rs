//! The other programs of Muster, `master` and `agent`. They are in the folder of this program, or in
//! `../libexec/muster`. pip puts them there, so that only `muster` and `client` are on the PATH.

use std::ffi::OsString;
use std::io;
use std::iter;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ending::error::Error;

/// The names of the programs.
const PROGRAMS: [&str; 2] = ["master", "agent"];

/// The path of the master that this client starts. The agent is in the same folder.
///
/// # Errors
/// If a program is missing.
pub(crate) fn master() -> Result<PathBuf, Error> {
    let unknown = |error| Error::master("find the folder of this program").because(error);
    let folder = folder().map_err(unknown)?;
    match PROGRAMS.into_iter().find(|program| !folder.join(program).is_file()) {
        None => Ok(folder.join("master")),
        Some(missing) => {
            let sentence = format!("there is no program \"{missing}\" in {}", folder.display());
            let hint = "make build puts client, master and agent side by side; or give --master URL";
            Err(Error::master(sentence).hint(hint))
        }
    }
}

/// The path of this program's agent, if there is one.
pub(crate) fn agent() -> Option<PathBuf> {
    folder().ok().map(|folder| folder.join("agent")).filter(|path| path.is_file())
}

/// Whether the word after the program's name starts another program, as in `muster master --listen 127.0.0.1:7897`.
pub(crate) fn is_one(word: &OsString) -> bool {
    PROGRAMS.iter().any(|program| word == program)
}

/// Replaces this process by another program. Returns only if that program cannot be started.
pub(crate) fn become_program(name: &OsString, arguments: &[OsString]) -> Error {
    let path = match master() {
        Ok(master) => master.with_file_name(name),
        Err(error) => return error,
    };
    let error = Command::new(&path).args(arguments).exec();
    Error::master(format!("start {}", path.display())).because(error)
}

/// The PATH of scripts on this machine. `path` is the PATH of this program. If this program was started by its path in a
/// virtual environment, for example by cron, the environment's Python is first, although the environment is not active.
/// torchrun does the same.
pub(crate) fn path_for_scripts(path: OsString) -> OsString {
    path_with(Path::new(&std::env::args_os().next().unwrap_or_default()), path)
}

/// `started_as` is the program's name as it was typed. A link to the program is not followed: a tool such as pipx makes
/// one to an environment that the user does not know.
fn path_with(started_as: &Path, path: OsString) -> OsString {
    let folder = started_as.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.and_then(|folder| std::path::absolute(folder).ok());
    let Some(folder) = folder.filter(|folder| folder.with_file_name("pyvenv.cfg").is_file()) else { return path };
    std::env::join_paths(iter::once(folder).chain(std::env::split_paths(&path))).unwrap_or(path)
}

/// The folder of the programs: this program's own folder, unless only the folder that pip uses has a master.
fn folder() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?.canonicalize()?;
    let own = program.parent().map(Path::to_owned).unwrap_or_default();
    let libexec = own.with_file_name("libexec").join("muster");
    let is_by_pip = !own.join("master").is_file() && libexec.join("master").is_file();
    Ok(if is_by_pip { libexec } else { own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_of_an_environment_in_which_the_program_was_started_is_first() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let path = |started_as: &Path| path_with(started_as, "/usr/bin:/bin".into()).into_string().unwrap();
        assert_eq!(path(&bin.join("client")), "/usr/bin:/bin", "a folder that is no environment");
        std::fs::write(folder.path().join("pyvenv.cfg"), "").unwrap();
        assert_eq!(path(&bin.join("client")), format!("{}:/usr/bin:/bin", bin.display()));
        assert_eq!(path(Path::new("client")), "/usr/bin:/bin", "found on the PATH");
    }
}
