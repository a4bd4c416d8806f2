//! What the processes of the run use, read from the kernel when a master asks for the status.

use std::time::Duration;

use protocol::agent::RunStatus;
use protocol::usage::Usage;

use super::memory::{CGROUP, Memory};
use crate::process::proc::{Stat, family};

/// The status with what the processes of the run use.
pub(crate) fn with_usage(mut status: RunStatus) -> RunStatus {
    let memory_limit = Memory::of(CGROUP).limit();
    let used: Vec<(usize, Usage)> =
        status.pids().into_iter().filter_map(|(index, pid)| Some((index, usage_of(pid, memory_limit)?))).collect();
    status.usage = used.iter().map(|(_, usage)| *usage).reduce(|sum, usage| Usage {
        cpu_us: sum.cpu_us + usage.cpu_us,
        rss_bytes: sum.rss_bytes + usage.rss_bytes,
        memory_limit,
    });
    for (index, usage) in used {
        if let Some(process) = status.processes.get_mut(index) {
            process.usage = Some(usage);
        }
    }
    status
}

/// The usage of a main process and of its descendants; `None` if the main process has ended.
fn usage_of(main: u32, memory_limit: Option<u64>) -> Option<Usage> {
    let family = family(i32::try_from(main).ok()?);
    if family.is_empty() {
        return None;
    }
    let cpu: Duration = family.iter().map(|(_, Stat { cpu, cpu_of_ended, .. })| *cpu + *cpu_of_ended).sum();
    Some(Usage {
        cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
        rss_bytes: family.iter().map(|(_, stat)| stat.resident_bytes).sum(),
        memory_limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_a_process_that_has_ended_is_unknown() {
        assert_eq!(usage_of(u32::MAX, None), None);
        assert!(usage_of(std::process::id(), None).is_some_and(|usage| usage.rss_bytes > 100_000), "no memory");
    }
}
