//! Whether the kernel ended a run because memory ran out. To a parent that looks like any other SIGKILL; what tells the
//! two apart is a counter of the container's cgroup. Where there is none, as on a machine without cgroups, an end
//! stays what it looks like.

use std::fs;
use std::path::PathBuf;

use protocol::agent::ExitOutcome;

use super::phase::Cause;

/// Where a container finds its own cgroup.
pub const CGROUP: &str = "/sys/fs/cgroup";

/// Where each version of cgroups keeps what is needed here (Linux, admin-guide/cgroup-v2.rst and
/// admin-guide/cgroup-v1/memory.rst).
const LAYOUTS: [Layout; 2] = [
    Layout { events: "memory.events", limit: "memory.max" },
    Layout { events: "memory/memory.oom_control", limit: "memory/memory.limit_in_bytes" },
];

/// Limits from here on, in bytes, mean none: version 1 says so by the largest number of whole pages, whose size differs
/// from machine to machine.
const UNLIMITED: u64 = 1 << 62;

/// The signal by which the kernel frees memory, and the exit code by which a shell passes on that its child died of it.
const SIGKILL: i32 = 9;
const KILLED: i32 = 128 + SIGKILL;

/// Two files of a cgroup, below its folder.
struct Layout {
    /// Has a line `oom_kill N`: the processes that the kernel has killed for want of memory, a number that only rises.
    events: &'static str,
    /// How many bytes its processes may use together.
    limit: &'static str,
}

/// What the cgroup says of the runs of one agent.
#[derive(Debug)]
pub struct Memory {
    cgroup: PathBuf,
    /// Before the present run was started.
    kills_before: Option<u64>,
}

impl Memory {
    /// Of the cgroup in this folder, which need not exist.
    pub fn of(cgroup: impl Into<PathBuf>) -> Self {
        Self { cgroup: cgroup.into(), kills_before: None }
    }

    /// To be called before a run is started.
    pub fn begin(&mut self) {
        self.kills_before = self.kills();
    }

    /// How the main process of the run ended, of which its parent has heard `heard`.
    pub fn explain(&self, heard: ExitOutcome, cause: Cause) -> ExitOutcome {
        if ran_out(&heard, cause, self.kills_before, self.kills()) {
            ExitOutcome::OutOfMemory { limit: self.limit() }
        } else {
            heard
        }
    }

    /// How many processes the kernel has killed for want of memory.
    fn kills(&self) -> Option<u64> {
        let of_layout = |layout: &Layout| {
            let events = self.read(layout.events)?;
            events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        };
        LAYOUTS.iter().find_map(of_layout)
    }

    /// How many bytes may be used, if that is limited.
    fn limit(&self) -> Option<u64> {
        let text = LAYOUTS.iter().find_map(|layout| self.read(layout.limit))?;
        text.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.cgroup.join(file)).ok()
    }
}

/// Whether memory ran out, by how a main process ended and why, and by the number of kills before its start and after its
/// end. The counter names no process, so a run that loses a child to the kernel and is then killed by a stranger counts
/// as well; a kill that we asked for never does.
pub fn ran_out(outcome: &ExitOutcome, cause: Cause, before: Option<u64>, after: Option<u64>) -> bool {
    let was_killed = matches!(outcome, ExitOutcome::Signal(SIGKILL) | ExitOutcome::Code(KILLED));
    let has_risen = before.zip(after).is_some_and(|(before, after)| before < after);
    cause == Cause::Own && was_killed && has_risen
}
