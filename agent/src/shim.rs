//! The moment between the agent and exec.py. The kernel's promise to kill a process together with its parent can only
//! be asked for by that process itself, and between fork and exec safe code has no place to do so. So the agent
//! starts its own program again; that one asks, looks whether the agent is still there, and becomes the command.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The hidden flag; the agent's process id, `--` and the command follow.
pub const FLAG: &str = "--exec-shim";

/// Shells' exit code for a command that was found and could not be started.
const CANNOT_EXECUTE: u8 = 126;
/// Shells' exit code for a command that was not found.
const NOT_FOUND: u8 = 127;

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
    let error = Command::new(program).args(arguments).exec();
    if error.kind() != io::ErrorKind::NotFound {
        fail(&format!("cannot start {program:?}: {error}"), CANNOT_EXECUTE)
    } else if program.to_string_lossy().contains('/') {
        fail(&format!("cannot start {program:?}: no such file"), NOT_FOUND)
    } else {
        fail(&format!("cannot start {program:?}: not found on PATH"), NOT_FOUND)
    }
}

fn fail(sentence: &str, code: u8) -> u8 {
    // The exit code says it too, so that a stderr which takes nothing more hides nothing.
    let _ = writeln!(io::stderr(), "{sentence}");
    code
}
