//! The main process of a run: how it is started.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Pid, getpid};
use tokio::net::unix::pipe;

use super::environment::{EnvChanges, Environment, child_environment};
use crate::shim;

/// What every run has in common.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// Where it runs.
    pub work_dir: PathBuf,
    /// The agent's own environment without the agent's own variables.
    pub environment: Environment,
}

/// A main process that has been started, and the reading ends of its output.
#[derive(Debug)]
pub struct Child {
    /// Its id, which is also its process group's.
    pub pid: Pid,
    /// What it writes to stdout.
    pub stdout: pipe::Receiver,
    /// What it writes to stderr.
    pub stderr: pipe::Receiver,
}

/// Starts the command in a process group of its own. Whether it can be found shows later, as its exit code: the
/// process that is started here is the agent's own program, which becomes the command (see [`shim`]).
///
/// Must be called from the thread that lives as long as the agent, for the kernel kills the child when the thread that
/// started it ends.
///
/// # Errors
/// What the kernel says: no memory, too many processes, no such working directory, or an environment that is too large.
pub fn spawn(recipe: &Recipe, changes: &EnvChanges) -> io::Result<Child> {
    let agent = getpid().as_raw_nonzero().to_string();
    let mut child = Command::new("/proc/self/exe")
        .args([shim::FLAG, &agent, "--"].map(OsString::from))
        .args(&recipe.command)
        .env_clear()
        .envs(child_environment(&recipe.environment, changes))
        .current_dir(&recipe.work_dir)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let pid = Pid::from_child(&child);
    let stdout = child.stdout.take().map(OwnedFd::from).expect("stdout was asked for as a pipe");
    let stderr = child.stderr.take().map(OwnedFd::from).expect("stderr was asked for as a pipe");
    Ok(Child { pid, stdout: pipe::Receiver::from_owned_fd(stdout)?, stderr: pipe::Receiver::from_owned_fd(stderr)? })
}

/// Why a start failed, for people: the working directory is the part of it that users choose.
pub fn describe_failure(recipe: &Recipe, error: &io::Error) -> String {
    format!("cannot start {:?} in {:?}: {error}", recipe.command, recipe.work_dir)
}
