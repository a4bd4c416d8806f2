//! Whether the kernel killed a run because memory ran out. A parent cannot distinguish this from any other SIGKILL, but
//! a counter of the container's cgroup shows it. Without cgroups, the run is reported as ended by SIGKILL.

use std::fs;
use std::path::PathBuf;

use protocol::agent::ExitOutcome;

use super::phase::EndCause;

/// The folder of a container's own cgroup.
pub const CGROUP: &str = "/sys/fs/cgroup";

/// The files of each version of cgroups (Linux, admin-guide/cgroup-v2.rst and
/// admin-guide/cgroup-v1/memory.rst).
const LAYOUTS: [Layout; 2] = [
    Layout { events: "memory.events", limit: "memory.max" },
    Layout { events: "memory/memory.oom_control", limit: "memory/memory.limit_in_bytes" },
];

/// A limit of at least this many bytes means no limit. Without a limit, version 1 writes the largest multiple of the
/// page size, which differs between machines.
const UNLIMITED: u64 = 1 << 62;

/// The signal that the kernel sends, and the exit code of a shell whose child was ended by this signal.
const SIGKILL: i32 = 9;
const KILLED: i32 = 128 + SIGKILL;

/// Two files of a cgroup, below its folder.
struct Layout {
    /// Has a line `oom_kill N`: the number of processes that the kernel has killed because memory ran out.
    events: &'static str,
    /// The number of bytes that the cgroup's processes may use together.
    limit: &'static str,
}

/// The memory of one agent's runs, according to a cgroup.
#[derive(Debug)]
pub struct Memory {
    cgroup: PathBuf,
    /// The counter before the present run was started.
    kills_before: Option<u64>,
}

impl Memory {
    /// Uses the cgroup in this folder, which need not exist.
    pub fn of(cgroup: impl Into<PathBuf>) -> Self {
        Self { cgroup: cgroup.into(), kills_before: None }
    }

    /// Call this before each start.
    pub fn begin(&mut self) {
        self.kills_before = self.kills();
    }

    /// How the main process of the run ended. `outcome` is the kernel's report to the agent.
    pub fn explain(&self, outcome: ExitOutcome, cause: EndCause) -> ExitOutcome {
        if ran_out(&outcome, cause, self.kills_before, self.kills()) {
            ExitOutcome::OutOfMemory { limit: self.limit() }
        } else {
            outcome
        }
    }

    /// The number of processes that the kernel has killed because memory ran out.
    fn kills(&self) -> Option<u64> {
        let of_layout = |layout: &Layout| {
            let events = self.read(layout.events)?;
            events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        };
        LAYOUTS.iter().find_map(of_layout)
    }

    /// The limit in bytes, if there is one.
    pub(super) fn limit(&self) -> Option<u64> {
        let text = LAYOUTS.iter().find_map(|layout| self.read(layout.limit))?;
        text.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.cgroup.join(file)).ok()
    }
}

/// Whether memory ran out: the main process was killed, but not by the agent, and the counter rose during the run. The
/// counter names no process. So the result is also true if a user killed the run after the kernel had killed another
/// process of the cgroup.
pub fn ran_out(outcome: &ExitOutcome, cause: EndCause, before: Option<u64>, after: Option<u64>) -> bool {
    let was_killed = matches!(outcome, ExitOutcome::Signal(SIGKILL) | ExitOutcome::Code(KILLED));
    let has_risen = before.zip(after).is_some_and(|(before, after)| before < after);
    cause == EndCause::Own && was_killed && has_risen
}
