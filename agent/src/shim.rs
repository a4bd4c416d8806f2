//! The moment between the agent and exec.py. The kernel's promise to kill a process together with its parent can only
//! be asked for by that process itself, and between fork and exec safe code has no place to do so. So the agent
//! starts its own program again; that one asks, looks whether the agent is still there, and becomes the command.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use protocol::agent::PYTHONS;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The hidden flag; the agent's process id, `--` and the command follow.
pub const FLAG: &str = "--exec-shim";

/// Shells' exit code for a command that was found and could not be started.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// Shells' exit code for a command that was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// What the agent asks of its own program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shim {
    /// The agent's process id.
    pub agent: i32,
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
}

/// Becomes the command. Returns only if that fails, with the code to exit with; the reason stands on stderr then.
pub fn become_command(shim: Shim) -> u8 {
    let Shim { agent, command } = shim;
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return fail(&format!("cannot tie the run to its agent: {error}"), CANNOT_EXECUTE);
    }
    // An agent that died before the line above has nobody left to kill this process for it.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(agent) {
        return fail("the agent that started this run is gone", CANNOT_EXECUTE);
    }
    let (program, arguments) = command.split_first().expect("the command line was checked when it was parsed");
    let [python, python3] = PYTHONS;
    let mut error = Command::new(program).args(arguments).exec();
    if program == python && error.kind() == io::ErrorKind::NotFound {
        error = Command::new(python3).args(arguments).exec();
    }
    let (why, code) = if error.kind() != io::ErrorKind::NotFound {
        (error.to_string(), CANNOT_EXECUTE)
    } else if program.to_string_lossy().contains('/') {
        ("no such file".to_owned(), NOT_FOUND)
    } else if program == python {
        (format!("neither {python} nor {python3} is on PATH; install Python 3, or set PATH"), NOT_FOUND)
    } else {
        ("not found on PATH".to_owned(), NOT_FOUND)
    };
    fail(&format!("{}{why}", cannot_start(program)), code)
}

/// How the sentence on a program begins that cannot be started. The agent knows it by that.
pub(crate) fn cannot_start(program: &OsStr) -> String {
    format!("cannot start {program:?}: ")
}

fn fail(sentence: &str, code: u8) -> u8 {
    // The exit code says it too, so that a stderr which takes nothing more hides nothing.
    let _ = writeln!(io::stderr(), "{sentence}");
    code
}
