//! Reaps every child of the agent, and kills what a run leaves behind.
//!
//! The agent is a child subreaper (process 1 is one anyway), so a process whose parent has ended becomes its child,
//! however it detached itself. Only [`Reaper::reap`] waits for children. The task that calls it also starts them:
//! `Command::spawn` waits for its child when it fails, and would lose it to a reaper in another task.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;

use protocol::agent::ExitOutcome;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    set_child_subreaper, wait, waitid,
};
use tokio::signal::unix::{self, SignalKind};

/// Reports and reaps children that have ended.
#[derive(Debug)]
pub struct Reaper {
    child_ended: unix::Signal,
}

/// Whether the agent has children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Children {
    /// None, so it has no descendants either.
    None,
    /// At least one.
    Some,
}

/// The result of [`Reaper::reap`].
#[derive(Debug, PartialEq, Eq)]
pub struct Reaped {
    /// How the main process ended, if it did.
    pub main: Option<ExitOutcome>,
    /// Whether the agent has further children.
    pub children: Children,
}

impl Reaper {
    /// Makes this process the parent of orphans.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self { child_ended: unix::signal(SignalKind::child())? })
    }

    /// Returns when children may have ended since the last call.
    pub async fn child_ended(&mut self) {
        if self.child_ended.recv().await.is_none() {
            // The runtime is shutting down; no signal will come.
            std::future::pending::<()>().await;
        }
    }

    /// Reaps every child that has ended. If `main` has ended, kills its process group first: until it is reaped, no
    /// other process can have its id.
    pub fn reap(&self, main: Option<Pid>) -> Reaped {
        if let Some(main) = main
            && has_ended(main)
        {
            kill_group(main);
        }
        let mut outcome = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == main => outcome = outcome_of(status),
                Ok(Some((_orphan, _status))) => {}
                Ok(None) => return Reaped { main: outcome, children: Children::Some },
                Err(Errno::INTR) => {}
                Err(_no_children) => return Reaped { main: outcome, children: Children::None },
            }
        }
    }

    /// Sends SIGKILL to every child of the agent. Their children become the agent's when they are dead, so repeat this
    /// until [`Reaper::reap`] finds none. It does not kill grandchildren directly: a child keeps its process id until it
    /// is reaped here, while a grandchild's id may already belong to another process.
    pub fn kill_children(&self) {
        for child in children_of(getpid()) {
            // The child may have ended meanwhile.
            let _ = kill_process(child, Signal::KILL);
        }
    }
}

/// Programs that wait for the command that they have started and do not pass signals on to it.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];

/// Sends SIGTERM to a main process that has not been reaped. Its children get none: a handler that was set before a
/// fork would run in each of them, and several would save the same state. A shell passes no signal on, so its whole
/// process group gets it.
pub fn terminate(main: Pid) {
    let send = if is_shell(main) { kill_process_group } else { kill_process };
    // The process may have ended.
    let _ = send(main, Signal::TERM);
}

/// Whether a process runs a shell: by its program, which for a script is the interpreter, or by the name under which
/// busybox was started.
fn is_shell(process: Pid) -> bool {
    let folder = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
    let program = fs::read_link(folder.join("exe")).unwrap_or_default();
    let program = program.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let name = if program == "busybox" { fs::read_to_string(folder.join("comm")) } else { Ok(program) };
    name.is_ok_and(|name| SHELLS.contains(&name.trim_end()))
}

/// Sends SIGKILL to the process group of a main process that has not been reaped, and to the process itself, in case it
/// has left its group.
pub fn kill_group(main: Pid) {
    let _ = kill_process_group(main, Signal::KILL);
    let _ = kill_process(main, Signal::KILL);
}

/// Whether a child has ended and waits to be reaped.
fn has_ended(child: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(child), look), Ok(Some(_)))
}

fn outcome_of(status: WaitStatus) -> Option<ExitOutcome> {
    let code = status.exit_status().map(ExitOutcome::Code);
    code.or_else(|| status.terminating_signal().map(ExitOutcome::Signal))
}

/// The processes whose parent is `parent`, by `/proc` (proc_pid_stat(5)).
fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|pid| parent_of(*pid) == Some(parent)).filter_map(Pid::from_raw).collect()
}

/// The parent of a process; `None` when it has ended meanwhile.
fn parent_of(pid: i32) -> Option<Pid> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets. It may contain anything, also spaces and brackets.
    let behind_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = str::from_utf8(&stat[behind_name..]).ok()?;
    Pid::from_raw(fields.split_ascii_whitespace().nth(1)?.parse().ok()?)
}
