//! Which ends of a run are reported as out of memory, and which files of a cgroup show it.

use std::fs;
use std::path::Path;

use agent::run::memory::{Memory, ran_out};
use agent::run::phase::EndCause;
use protocol::agent::ExitOutcome;
use tempfile::TempDir;

const KILLED: ExitOutcome = ExitOutcome::Signal(9);
const LIMIT: u64 = 64 << 20;

/// The files of a cgroup of one version.
struct Version {
    events: &'static str,
    limit: &'static str,
    /// The content of the limit's file if there is no limit.
    none: &'static str,
    /// The lines before the counter.
    head: &'static str,
    /// The lines after the counter.
    tail: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        events: "memory/memory.oom_control",
        limit: "memory/memory.limit_in_bytes",
        none: "9223372036854771712\n",
        head: "oom_kill_disable 0\nunder_oom 0\n",
        tail: "",
    },
    Version {
        events: "memory.events",
        limit: "memory.max",
        none: "max\n",
        head: "low 0\nhigh 0\nmax 812\noom 9\n",
        tail: "oom_group_kill 7\n",
    },
];

impl Version {
    /// A cgroup with this limit and three kills.
    fn cgroup(&self, limit: &str) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("memory")).unwrap();
        fs::write(dir.path().join(self.limit), limit).unwrap();
        self.count(dir.path(), 3);
        dir
    }

    fn count(&self, cgroup: &Path, kills: u64) {
        fs::write(cgroup.join(self.events), format!("{}oom_kill {kills}\n{}", self.head, self.tail)).unwrap();
    }
}

#[test]
fn only_a_kill_that_nobody_requested_and_that_the_kernel_counted_is_out_of_memory() {
    let (own, stopped) = (EndCause::Own, EndCause::Stopped);
    let table = [
        (KILLED, own, Some(0), Some(1), true),
        (KILLED, own, Some(3), Some(9), true),
        (KILLED, own, Some(3), Some(3), false),
        (KILLED, own, Some(3), Some(0), false),
        (KILLED, own, None, None, false),
        (KILLED, own, None, Some(1), false),
        (KILLED, own, Some(1), None, false),
        (KILLED, stopped, Some(0), Some(1), false),
        (ExitOutcome::Code(137), own, Some(0), Some(1), true),
        (ExitOutcome::Code(137), own, Some(0), Some(0), false),
        (ExitOutcome::Code(137), stopped, Some(0), Some(1), false),
        (ExitOutcome::Code(0), own, Some(0), Some(1), false),
        (ExitOutcome::Code(1), own, Some(0), Some(1), false),
        (ExitOutcome::Code(9), own, Some(0), Some(1), false),
        (ExitOutcome::Signal(15), own, Some(0), Some(1), false),
        (ExitOutcome::Signal(6), own, Some(0), Some(1), false),
        (ExitOutcome::NotStarted("no memory".to_owned()), own, Some(0), Some(1), false),
    ];
    for (outcome, cause, before, after, expected) in table {
        let row = format!("{outcome:?}, {cause:?}, {before:?} → {after:?}");
        assert_eq!(ran_out(&outcome, cause, before, after), expected, "{row}");
    }
}

#[test]
fn both_versions_of_cgroups_are_understood_with_and_without_a_limit() {
    for version in VERSIONS {
        for (text, limit) in [(format!("{LIMIT}\n").as_str(), Some(LIMIT)), (version.none, None)] {
            let cgroup = version.cgroup(text);
            let mut memory = Memory::of(cgroup.path());
            // How a kill is explained if the counter has this value at the end of the run.
            let mut explained = |kills: u64| {
                memory.begin();
                version.count(cgroup.path(), kills);
                assert_eq!(memory.explain(KILLED, EndCause::Stopped), KILLED, "{}", version.events);
                memory.explain(KILLED, EndCause::Own)
            };
            assert_eq!(explained(3), KILLED, "{}", version.events);
            assert_eq!(explained(4), ExitOutcome::OutOfMemory { limit }, "{}", version.limit);
            assert_eq!(explained(4), KILLED, "a kill during the earlier run counts for the present run");
        }
    }
}

#[test]
fn without_a_counter_a_kill_is_reported_as_sigkill() {
    let nothing = tempfile::tempdir().unwrap();
    // Kernels before 4.13 have no counter.
    let old = tempfile::tempdir().unwrap();
    fs::create_dir(old.path().join("memory")).unwrap();
    fs::write(old.path().join("memory/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\n").unwrap();
    for cgroup in [nothing.path().to_owned(), nothing.path().join("absent"), old.path().to_owned()] {
        let mut memory = Memory::of(&cgroup);
        memory.begin();
        assert_eq!(memory.explain(KILLED, EndCause::Own), KILLED, "{cgroup:?}");
    }
}
