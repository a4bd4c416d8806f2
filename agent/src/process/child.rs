//! Starts the main process of a run.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use protocol::env::{MUSTER_FD, MUSTER_STACKS_FD};
use rustix::fs::fstat;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, getpid};
use tokio::net::unix::pipe;

use super::arguments::expanded;
use super::environment::{EnvChanges, Environment, append_to_python_path, child_environment};
use crate::process::shim;

/// What all runs of an agent have in common.
#[derive(Debug, Clone)]
pub struct RunTemplate {
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// The number of first words that are an image's ENTRYPOINT. These words are not expanded.
    pub entrypoint_words: usize,
    /// The working directory.
    pub work_dir: PathBuf,
    /// The agent's environment without Muster's variables.
    pub environment: Environment,
    /// The folder with `muster.py`, if it could be created.
    pub helper: Option<PathBuf>,
}

impl RunTemplate {
    /// The environment of a run with these changes.
    pub fn environment_with(&self, changes: &EnvChanges) -> Environment {
        let mut environment = child_environment(&self.environment, changes);
        if let Some(folder) = &self.helper {
            append_to_python_path(&mut environment, folder);
        }
        environment
    }

    /// The command of a run with this environment.
    pub fn command_with(&self, environment: &Environment) -> io::Result<Vec<OsString>> {
        let (entrypoint, command) = self.command.split_at(self.entrypoint_words);
        Ok([entrypoint, &expanded(command, environment)?].concat())
    }
}

/// The command, the environment and the descriptors of one run.
#[derive(Debug)]
pub struct Start {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// The run's environment without `MUSTER_FD` and `MUSTER_STACKS_FD`.
    pub environment: Environment,
    /// The run's end of the socket to the agent.
    pub helper: OwnedFd,
    /// The file to which Python writes its stacks, if it could be created.
    pub stacks: Option<OwnedFd>,
}

/// The reading ends of a main process's output.
#[derive(Debug)]
pub struct Pipes {
    /// The main process's stdout.
    pub stdout: pipe::Receiver,
    /// The main process's stderr.
    pub stderr: pipe::Receiver,
}

/// Starts a run in a new process.
pub fn start(template: &RunTemplate, start: Start) -> io::Result<(Pid, Pipes)> {
    let Start { command, mut environment, helper, stacks } = start;
    environment.insert(MUSTER_FD.into(), inherited(&helper)?.into());
    if let Some(stacks) = &stacks {
        environment.insert(MUSTER_STACKS_FD.into(), inherited(stacks)?.into());
    }
    spawn(&command, &template.work_dir, &environment, Stdio::null())
}

/// Lets the next process inherit a descriptor. Returns the descriptor's number and inode, as `NUMBER:INODE`. No other
/// process inherits it, because only this thread starts processes.
fn inherited(descriptor: &OwnedFd) -> io::Result<String> {
    fcntl_setfd(descriptor, FdFlags::empty())?;
    Ok(format!("{}:{}", descriptor.as_raw_fd(), fstat(descriptor)?.st_ino))
}

/// Starts a command with this environment in a new process group. Returns the process id, which is also the group's id.
/// The started process is the agent's own program, which then becomes the command (see [`shim`]). So `spawn` succeeds
/// even if the command does not exist: the exit code shows that error later.
///
/// Call this from a thread that lives as long as the agent: the kernel kills the child when the thread that started it
/// ends.
///
/// # Errors
/// The kernel's error: no memory, too many processes, no such working directory, or an environment that is too large.
pub fn spawn(
    command: &[OsString],
    work_dir: &Path,
    environment: &Environment,
    stdin: Stdio,
) -> io::Result<(Pid, Pipes)> {
    let agent = getpid().as_raw_nonzero().to_string();
    let mut child = Command::new("/proc/self/exe")
        .args([shim::FLAG, &agent, "--"].map(OsString::from))
        .args(command)
        .env_clear()
        .envs(environment)
        .current_dir(work_dir)
        .process_group(0)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().map(OwnedFd::from).expect("stdout was asked for as a pipe");
    let stderr = child.stderr.take().map(OwnedFd::from).expect("stderr was asked for as a pipe");
    let pipes =
        Pipes { stdout: pipe::Receiver::from_owned_fd(stdout)?, stderr: pipe::Receiver::from_owned_fd(stderr)? };
    Ok((Pid::from_child(&child), pipes))
}

/// Why a start failed. The text names the working directory, because users choose it.
pub fn describe_failure(template: &RunTemplate, error: &io::Error) -> String {
    format!("cannot start {:?} in {:?}: {error}", template.command, template.work_dir)
}
