//! What the runs of a job use: the newest numbers of each replica.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::agent::{RunState, RunStatus};
use protocol::ids::{ReplicaId, UnixMillis};
use protocol::usage::{ReplicaUsage, Usage};

use crate::mutex::Mutex;

/// The newest numbers of each replica that runs.
#[derive(Debug, Default)]
pub(super) struct UsageOfJob(Mutex<BTreeMap<ReplicaId, Option<NewestUsage>>>);

/// The numbers of one run.
#[derive(Debug)]
struct NewestUsage {
    cpu_us: u64,
    shown: ReplicaUsage,
}

impl UsageOfJob {
    /// Notes the usage in this status, and returns this usage, unless the previous usage is too recent. Forgets the
    /// usage of a run that has ended.
    pub(super) fn note(&self, replica: ReplicaId, status: &RunStatus, now: UnixMillis) -> Option<ReplicaUsage> {
        let mut all = self.0.lock();
        match status.state {
            RunState::Running | RunState::Stopping => {
                let newest = all.entry(replica).or_default();
                let Usage { cpu_us, rss_bytes, memory_limit } = status.usage?;
                let generation = status.generation?;
                let shown = ReplicaUsage { replica, at: now, generation, cpu_percent: None, rss_bytes, memory_limit };
                let new = NewestUsage::after(newest.as_ref(), cpu_us, shown)?;
                Some(newest.insert(new).shown.clone())
            }
            RunState::Idle | RunState::Configured | RunState::Exited => {
                all.remove(&replica);
                None
            }
        }
    }

    /// Forgets the usage of a replica whose pod is lost.
    pub(super) fn forget(&self, replica: ReplicaId) {
        self.0.lock().remove(&replica);
    }

    /// The number of replicas that run.
    pub(super) fn running(&self) -> usize {
        self.0.lock().len()
    }

    /// The newest numbers.
    pub(super) fn shown(&self) -> Vec<ReplicaUsage> {
        self.0.lock().values().flatten().map(|newest| newest.shown.clone()).collect()
    }
}

/// Two answers within this time say little about the processor time, which the kernel counts in steps of 10 ms. The
/// earlier numbers stay.
const WINDOW_MIN: Duration = Duration::from_millis(500);

impl NewestUsage {
    /// The new numbers. If `before` is of the same run, they include the percentage of processor time since `before`.
    /// `None` if less than [`WINDOW_MIN`] has passed since `before`.
    fn after(before: Option<&Self>, cpu_us: u64, mut shown: ReplicaUsage) -> Option<Self> {
        if let Some(before) = before.filter(|before| before.shown.generation == shown.generation) {
            let elapsed = shown.at.since(before.shown.at);
            if elapsed < WINDOW_MIN {
                return None;
            }
            let percent = u128::from(cpu_us.saturating_sub(before.cpu_us)) * 100 / elapsed.as_micros();
            shown.cpu_percent = Some(u32::try_from(percent).unwrap_or(u32::MAX));
        }
        Some(Self { cpu_us, shown })
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::Generation;

    use super::*;

    fn status(state: RunState, sequence: u32, cpu_us: u64) -> RunStatus {
        let usage = (state == RunState::Running).then_some(Usage { cpu_us, rss_bytes: 4096, memory_limit: None });
        let generation = Some(Generation { epoch: 1, sequence });
        RunStatus { state, generation, usage, ..RunStatus::idle("boot") }
    }

    #[test]
    fn the_percentage_is_that_since_the_numbers_before_in_the_same_run() {
        let usage = UsageOfJob::default();
        let worker: ReplicaId = "worker-1".parse().unwrap();
        let note = |sequence, cpu_us, at| {
            usage.note(worker, &status(RunState::Running, sequence, cpu_us), UnixMillis(at));
            let shown = usage.shown();
            (shown[0].cpu_percent, shown[0].at.0)
        };
        assert_eq!(note(1, 1_000_000, 10_000), (None, 10_000));
        assert_eq!(note(1, 2_000_000, 10_100), (None, 10_000));
        assert_eq!(note(1, 13_500_000, 15_000), (Some(250), 15_000));
        assert_eq!(note(1, 13_500_000, 20_000), (Some(0), 20_000));
        assert_eq!(note(2, 100_000, 25_000), (None, 25_000));
        assert_eq!(usage.running(), 1);
        usage.note(worker, &status(RunState::Exited, 2, 0), UnixMillis(26_000));
        assert_eq!((usage.shown(), usage.running()), (vec![], 0));
    }

    #[test]
    fn a_replica_whose_agent_tells_no_usage_counts_as_running() {
        let usage = UsageOfJob::default();
        let running = RunStatus { usage: None, ..status(RunState::Running, 1, 0) };
        usage.note("worker-0".parse().unwrap(), &running, UnixMillis(1));
        assert_eq!((usage.shown(), usage.running()), (vec![], 1));
    }
}
