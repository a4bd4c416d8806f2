//! The step between the agent and the script. A process can ask the kernel to kill it when its parent dies. Rust needs
//! `unsafe` to run code between fork and exec, so the agent starts its own program again. The new process makes this
//! request, checks that the agent is still alive, and becomes the command.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use protocol::agent::PYTHONS;
use rustix::fs::{Access, access};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::process::script::place_of_python;

/// The hidden flag. The agent's process id, `--` and the command follow.
pub const FLAG: &str = "--exec-shim";

/// Exit code of shells for a command that was found but cannot be started.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// Exit code of shells for a command that was not found.
pub(crate) const NOT_FOUND: u8 = 127;

const NO_PYTHON: &str = "neither python nor python3 is on PATH; install Python 3, or set PATH";

/// The arguments of the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shim {
    /// The agent's process id.
    pub agent: i32,
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// The variable PATH.
    pub path: Option<OsString>,
}

/// Becomes the command. If this fails, prints the reason on stderr and returns the exit code.
pub fn become_command(shim: Shim) -> u8 {
    let Shim { agent, command, path } = shim;
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return fail(&format!("cannot ask the kernel to end the run with its agent: {error}"), CANNOT_EXECUTE);
    }
    // If the agent died before the line above, the kernel does not kill this process.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(agent) {
        return fail("the agent that started this run has ended", CANNOT_EXECUTE);
    }
    let command = with_installed_python(command, |program| is_on_path(program, path.as_deref()));
    let (program, arguments) = command.split_first().expect("the command line was checked when it was parsed");
    let error = Command::new(program).args(arguments).exec();
    let (why, code) = if error.kind() != io::ErrorKind::NotFound {
        (error.to_string(), CANNOT_EXECUTE)
    } else if program.to_string_lossy().contains('/') {
        ("no such file".to_owned(), NOT_FOUND)
    } else if program == PYTHONS[0] {
        (NO_PYTHON.to_owned(), NOT_FOUND)
    } else {
        ("not found on PATH".to_owned(), NOT_FOUND)
    };
    fail(&format!("{}{why}", cannot_start(program)), code)
}

/// Replaces the word `python` by `python3` if only `python3` is installed.
fn with_installed_python(mut command: Vec<OsString>, is_installed: impl Fn(&str) -> bool) -> Vec<OsString> {
    let [python, python3] = PYTHONS;
    if let Some(place) = place_of_plain_python(&command)
        && !is_installed(python)
        && is_installed(python3)
    {
        command[place] = python3.into();
    }
    command
}

/// The index of the word `python` that `python3` may replace: the first word of the command, or else the word before
/// the script.
fn place_of_plain_python(command: &[OsString]) -> Option<usize> {
    let place = if command[0] == PYTHONS[0] { Some(0) } else { place_of_python(command) };
    place.filter(|place| command[*place] == PYTHONS[0])
}

/// The error of a command that needs a Python, if none is installed. `path` is the variable PATH.
pub(crate) fn missing_python(command: &[OsString], path: Option<&OsStr>) -> Option<String> {
    place_of_plain_python(command)?;
    let is_missing = PYTHONS.into_iter().all(|program| !is_on_path(program, path));
    is_missing.then(|| NO_PYTHON.to_owned())
}

/// Whether a folder of PATH has this program. Without PATH, execvp(3) searches these two folders.
fn is_on_path(program: &str, path: Option<&OsStr>) -> bool {
    let can_execute = |folder: PathBuf| access(folder.join(program), Access::EXEC_OK).is_ok();
    env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))).any(can_execute)
}

/// The beginning of the error for a program that cannot be started. `run::unstartable` searches for this beginning.
pub(crate) fn cannot_start(program: &OsStr) -> String {
    format!("cannot start {program:?}: ")
}

fn fail(sentence: &str, code: u8) -> u8 {
    // If stderr is closed, the exit code still reports the failure.
    let _ = writeln!(io::stderr(), "{sentence}");
    code
}
