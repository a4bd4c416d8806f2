//! What the processes of the run use, read from the kernel when a master asks for the status.

use std::time::Duration;

use protocol::usage::Usage;

use super::memory::{CGROUP, Memory};
use crate::proc::{self, Stat, families, status_line};

/// The usage of the main process and of its descendants; `None` if the main process has ended.
pub(crate) fn usage_of(main: u32) -> Option<Usage> {
    let family = families(&[i32::try_from(main).ok()?], &proc::all());
    if family.is_empty() {
        return None;
    }
    let cpu: Duration = family.iter().map(|(_, Stat { cpu, cpu_of_ended, .. })| *cpu + *cpu_of_ended).sum();
    Some(Usage {
        cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
        rss_bytes: family.iter().filter_map(|(pid, _)| resident_bytes(&proc::text(*pid, "status")?)).sum(),
        memory_limit: Memory::of(CGROUP).limit(),
    })
}

/// The resident memory in `/proc/PID/status`. A process that is about to end has none.
fn resident_bytes(status: &str) -> Option<u64> {
    let kibibytes: u64 = status_line(status, "VmRSS")?.strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_given_in_kibibytes() {
        assert_eq!(resident_bytes("VmSize:\t 9 kB\nVmRSS:\t    1234 kB\n"), Some(1_263_616));
        assert_eq!(resident_bytes("Name:\tkthread\n"), None);
    }

    #[test]
    fn the_usage_of_a_process_that_has_ended_is_unknown() {
        assert_eq!(usage_of(u32::MAX), None);
        assert!(usage_of(std::process::id()).is_some_and(|usage| usage.rss_bytes > 100_000), "no memory");
    }
}
