//! Reaps every child of the agent, and kills what a run leaves behind.
//!
//! The agent is a child subreaper: a descendant whose parent has ended becomes the agent's child, even if it has
//! detached itself. Only [`Reaper::reap`] waits for children. The task that calls `reap` also starts the children:
//! `Command::spawn` forks a child, and waits for it if the program cannot be executed. A reaper in another task could
//! reap that child first.

use std::ffi::OsStr;
use std::io;

use protocol::agent::ExitOutcome;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    set_child_subreaper, wait, waitid,
};
use tokio::signal::unix::{self, SignalKind};

use crate::process::proc;

/// Reports and reaps children that have ended.
#[derive(Debug)]
pub struct Reaper {
    child_ended: unix::Signal,
}

/// The children whose end matters.
#[derive(Debug, Clone, Default)]
pub struct WatchedChildren {
    /// The main processes of the run.
    pub mains: Vec<Pid>,
    /// The warm interpreter.
    pub warm: Option<Pid>,
}

/// The result of [`Reaper::reap`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// The main processes that have ended, in the order of [`WatchedChildren::mains`], and how they ended.
    pub mains: Vec<(Pid, ExitOutcome)>,
    /// Whether the warm interpreter has ended.
    pub is_warm_gone: bool,
}

impl Reaper {
    /// Makes this process the parent of orphans.
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

    /// Reaps every child that has ended. If a watched child has ended, first kills the process group with the child's
    /// id. No other group can have this id before the child is reaped. After a success, the group may live on.
    pub fn reap(&self, WatchedChildren { mains, warm }: &WatchedChildren) -> Reaped {
        for leader in mains.iter().chain(warm).filter(|leader| has_failed(**leader)) {
            kill_group(*leader);
        }
        let mut reaped = Reaped::default();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if mains.contains(&pid) => {
                    reaped.mains.extend(outcome_of(status).map(|outcome| (pid, outcome)));
                }
                Ok(Some((pid, _status))) => reaped.is_warm_gone |= Some(pid) == *warm,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        reaped.mains.sort_by_key(|(pid, _)| mains.iter().position(|main| main == pid));
        reaped
    }

    /// Whether the agent has children other than `warm`. While a process of a run is left, the search through `/proc`
    /// finds such a child: the process or one of its ancestors. A child that ends during the search stays listed until
    /// it is reaped here.
    pub fn has_children_besides(&self, warm: Option<Pid>) -> bool {
        match warm {
            Some(warm) => children_of(getpid()).iter().any(|child| *child != warm),
            None => !matches!(waitid(WaitId::All, LOOK), Err(Errno::CHILD)),
        }
    }

    /// Reaps every child that has ended, and returns whether other children remain.
    pub fn has_children_after_reaping(&self) -> bool {
        self.reap(&WatchedChildren::default());
        self.has_children_besides(None)
    }

    /// Sends a signal to every child of the agent except `warm`, and returns their number. The children of a killed
    /// child become the agent's children, so repeat SIGKILL until [`Reaper::has_children_besides`] finds none.
    /// Grandchildren get no signal directly: a child keeps its process id until it is reaped here, but a grandchild's id
    /// may already belong to another process.
    pub fn signal_children_besides(&self, warm: Option<Pid>, signal: Signal) -> usize {
        let children = children_of(getpid()).into_iter().filter(|child| Some(*child) != warm);
        // A child may have ended meanwhile.
        children.filter(|child| kill_process(*child, signal).is_ok()).count()
    }
}

/// Shells. A shell waits for the command that it has started, and does not pass signals on to it.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];

/// Sends SIGTERM or SIGINT to a main process that has not been reaped. The process's children get no signal: a handler
/// that was set before a fork would run in each child, and several processes would save the same state. If the process
/// is a shell, its whole process group gets the signal.
pub fn signal_main(main: Pid, signal: Signal) {
    let send = if is_shell(main) { kill_process_group } else { kill_process };
    // The process may have ended.
    let _ = send(main, signal);
}

/// Whether a process runs a shell. Looks at the process's program. For a script, this is the interpreter. For busybox,
/// looks at the name under which busybox was started.
fn is_shell(process: Pid) -> bool {
    let program = proc::program(process).unwrap_or_default();
    let program = program.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let pid = process.as_raw_nonzero().get();
    let name = if program == "busybox" { proc::text(pid, "comm") } else { Some(program) };
    name.is_some_and(|name| SHELLS.contains(&name.trim_end()))
}

/// Sends SIGKILL to the process group of a main process that has not been reaped. Also sends SIGKILL to the process
/// itself, because it may have left its group.
pub fn kill_group(main: Pid) {
    let _ = kill_process_group(main, Signal::KILL);
    let _ = kill_process(main, Signal::KILL);
}

/// Whether a child has ended without success and waits to be reaped.
fn has_failed(child: Pid) -> bool {
    matches!(waitid(WaitId::Pid(child), LOOK), Ok(Some(status)) if status.exit_status() != Some(0))
}

/// Options with which `waitid` looks at children and does not reap them.
const LOOK: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// Whether a process is a child of the agent that has not been reaped.
pub fn is_child(pid: Pid) -> bool {
    proc::stat(pid.as_raw_nonzero().get()).is_some_and(|stat| Pid::from_raw(stat.parent) == Some(getpid()))
}

fn outcome_of(status: WaitStatus) -> Option<ExitOutcome> {
    let code = status.exit_status().map(ExitOutcome::Code);
    code.or_else(|| status.terminating_signal().map(ExitOutcome::Signal))
}

/// The processes whose parent is `parent`.
fn children_of(parent: Pid) -> Vec<Pid> {
    let is_child = |(_, stat): &(i32, proc::Stat)| Pid::from_raw(stat.parent) == Some(parent);
    proc::all().into_iter().filter(is_child).filter_map(|(pid, _)| Pid::from_raw(pid)).collect()
}
