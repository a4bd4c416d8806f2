//! Kills an agent and all its processes, if the agent does not end by itself, for example after SIGSTOP.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

/// Pause between two searches for processes that are still alive.
const PAUSE: Duration = Duration::from_millis(5);

/// Kills all descendants of an agent, and then the agent. While the agent lives, it is the parent of all orphans among
/// its descendants, so this function finds every descendant.
pub(super) async fn kill_tree(agent: Pid) {
    loop {
        let alive = descendants(agent);
        if alive.is_empty() {
            break;
        }
        for process in alive {
            // The process may have ended meanwhile.
            let _ = kill_process(process, Signal::KILL);
        }
        sleep(PAUSE).await;
    }
    let _ = kill_process(agent, Signal::KILL);
}

/// The living descendants of a process, according to `/proc` (proc_pid_stat(5)).
fn descendants(ancestor: Pid) -> Vec<Pid> {
    let ancestor = ancestor.as_raw_nonzero().get();
    let living: BTreeMap<i32, i32> =
        pids().filter_map(|pid| Some((pid, parent(pid, ProcessFilter::Living)?))).collect();
    let descends = |pid: &i32| {
        let parents = std::iter::successors(Some(*pid), |pid| living.get(pid).copied());
        // The parents can form a cycle if a new process has the number of a process that ended during the search.
        // `take` then ends the loop.
        parents.skip(1).take(living.len()).any(|parent| parent == ancestor)
    };
    living.keys().filter(|pid| descends(pid)).filter_map(|pid| Pid::from_raw(*pid)).collect()
}

/// The children of a process, also those that have ended and are not reaped.
pub(super) fn children(of: Pid) -> HashSet<Pid> {
    let is_child = |pid: &i32| parent(*pid, ProcessFilter::Any) == Some(of.as_raw_nonzero().get());
    pids().filter(is_child).filter_map(Pid::from_raw).collect()
}

/// The processes of this machine or container.
fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Which processes to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessFilter {
    Living,
    Any,
}

/// The parent of a process. `None` if there is no such process in this state.
fn parent(pid: i32, wanted: ProcessFilter) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets. The name may contain any character, even spaces and brackets.
    let behind_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = str::from_utf8(&stat[behind_name..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| wanted == ProcessFilter::Any || !matches!(state, "Z" | "X"))
}
