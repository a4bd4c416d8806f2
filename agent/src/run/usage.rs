//! What the processes of the run use, read from the kernel when a master asks for the status.

use std::time::Duration;

use protocol::usage::Usage;

use super::memory::{CGROUP, Memory};
use crate::process::proc::{Stat, family};

/// The usage of the main process and of its descendants; `None` if the main process has ended.
pub(crate) fn usage_of(main: u32) -> Option<Usage> {
    let family = family(i32::try_from(main).ok()?);
    if family.is_empty() {
        return None;
    }
    let cpu: Duration = family.iter().map(|(_, Stat { cpu, cpu_of_ended, .. })| *cpu + *cpu_of_ended).sum();
    Some(Usage {
        cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
        rss_bytes: family.iter().map(|(_, stat)| stat.resident_bytes).sum(),
        memory_limit: Memory::of(CGROUP).limit(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_a_process_that_has_ended_is_unknown() {
        assert_eq!(usage_of(u32::MAX), None);
        assert!(usage_of(std::process::id()).is_some_and(|usage| usage.rss_bytes > 100_000), "no memory");
    }
}
