//! Starts the main process of a run.

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

/// What all runs of an agent have in common.
#[derive(Debug, Clone)]
pub struct RunTemplate {
    /// Words in front of the command, which end by becoming it; mostly none.
    pub entrypoint: Vec<OsString>,
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// The working directory.
    pub work_dir: PathBuf,
    /// The agent's own environment without the agent's own variables.
    pub environment: Environment,
}

/// The reading ends of a main process's output.
#[derive(Debug)]
pub struct Pipes {
    /// Its stdout.
    pub stdout: pipe::Receiver,
    /// Its stderr.
    pub stderr: pipe::Receiver,
}

/// Starts the command in a process group of its own, and returns its process id, which is also the group's. If the
/// command cannot be found, that shows later, as its exit code: the process that is started here is the agent's own
/// program, which becomes the command (see [`shim`]).
///
/// Call it from the thread that lives as long as the agent: the kernel kills the child when the thread that started it
/// ends.
///
/// # Errors
/// What the kernel says: no memory, too many processes, no such working directory, or an environment that is too large.
pub fn spawn(template: &RunTemplate, changes: &EnvChanges) -> io::Result<(Pid, Pipes)> {
    let mut child = Command::new("/proc/self/exe")
        .args(words(template)?)
        .env_clear()
        .envs(child_environment(&template.environment, changes))
        .current_dir(&template.work_dir)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().map(OwnedFd::from).expect("stdout was asked for as a pipe");
    let stderr = child.stderr.take().map(OwnedFd::from).expect("stderr was asked for as a pipe");
    let pipes =
        Pipes { stdout: pipe::Receiver::from_owned_fd(stdout)?, stderr: pipe::Receiver::from_owned_fd(stderr)? };
    Ok((Pid::from_child(&child), pipes))
}

/// The arguments of the shim. An entrypoint becomes a second shim, which starts the command in the environment that the
/// entrypoint has prepared.
fn words(template: &RunTemplate) -> io::Result<Vec<OsString>> {
    let agent = getpid().as_raw_nonzero().to_string();
    let shim = [shim::FLAG, &agent, "--"].map(OsString::from).to_vec();
    if template.entrypoint.is_empty() {
        return Ok([shim, template.command.clone()].concat());
    }
    let own = vec![std::env::current_exe()?.into_os_string()];
    Ok([shim.clone(), template.entrypoint.clone(), own, shim, template.command.clone()].concat())
}

/// Why a start failed. It names the working directory, the part of a start that users choose.
pub fn describe_failure(template: &RunTemplate, error: &io::Error) -> String {
    format!("cannot start {:?} in {:?}: {error}", template.command, template.work_dir)
}
