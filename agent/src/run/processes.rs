//! The main processes of a run (pure).

use protocol::agent::{ExitOutcome, LEFT};
use protocol::ids::UnixMillis;
use rustix::process::Pid;

/// The main processes of a run, by their index in the replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MainProcesses {
    each: Vec<MainProcess>,
    /// The index of the process that failed first.
    failed: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MainProcess {
    Lives(Pid),
    Ended(MainEnd),
}

/// How and when a main process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MainEnd {
    /// The exit code, or the signal that ended it.
    pub outcome: ExitOutcome,
    /// By the clock of this machine.
    pub at: UnixMillis,
}

impl MainProcesses {
    /// Processes that have just been started, by their index.
    pub fn started(pids: Vec<Pid>) -> Self {
        Self { each: pids.into_iter().map(MainProcess::Lives).collect(), failed: None }
    }

    /// The process ids by index; `None` for a process that has ended.
    pub fn pids(&self) -> impl Iterator<Item = Option<Pid>> {
        self.each.iter().map(|process| if let MainProcess::Lives(pid) = process { Some(*pid) } else { None })
    }

    /// The processes that live.
    pub fn living(&self) -> Vec<Pid> {
        self.pids().flatten().collect()
    }

    /// Notes the ends of processes, which the agent has seen at the same time. A process that is killed by the agent has
    /// not failed.
    pub(super) fn end(&mut self, mut ends: Vec<(Pid, ExitOutcome)>, at: UnixMillis, are_killed: bool) {
        // The others often fail because one was killed.
        ends.sort_by_key(|(_, outcome)| match outcome {
            ExitOutcome::OutOfMemory { .. } => 0,
            ExitOutcome::Signal(_) => 1,
            ExitOutcome::Code(_) | ExitOutcome::NotStarted(_) => 2,
        });
        for (pid, outcome) in ends {
            let Some(index) = self.pids().position(|other| other == Some(pid)) else { continue };
            if !are_killed && !lets_others_run(&outcome) {
                self.failed.get_or_insert(index);
            }
            self.each[index] = MainProcess::Ended(MainEnd { outcome, at });
        }
    }

    /// Adds a process that could not be started.
    pub(super) fn add_failed(&mut self, end: MainEnd) {
        self.failed.get_or_insert(self.each.len());
        self.each.push(MainProcess::Ended(end));
    }

    /// Whether a process has failed. A process that exits with 0 or with [`LEFT`] has not: others may still be saving.
    pub fn have_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Whether a process has exited with [`LEFT`].
    pub fn have_left(&self) -> bool {
        self.each.iter().any(|process| matches!(process, MainProcess::Ended(end) if end.has_left()))
    }

    /// The index of the process whose end is the run's end, and this end. Call this when no process lives. It is the
    /// process that failed first, else one that exited with [`LEFT`], else the last of all. `None` if there is no process.
    pub fn decisive(&self) -> Option<(usize, MainEnd)> {
        let ends = self.each.iter().enumerate().filter_map(|(index, process)| match process {
            MainProcess::Lives(_) => None,
            MainProcess::Ended(end) => Some((index, end)),
        });
        let (index, end) = ends.max_by_key(|(index, end)| (Some(*index) == self.failed, end.has_left(), end.at))?;
        Some((index, end.clone()))
    }
}

impl MainEnd {
    fn has_left(&self) -> bool {
        self.outcome == ExitOutcome::Code(LEFT)
    }
}

/// Whether other processes of the replica may go on after this end.
fn lets_others_run(outcome: &ExitOutcome) -> bool {
    matches!(outcome, ExitOutcome::Code(0 | LEFT))
}
