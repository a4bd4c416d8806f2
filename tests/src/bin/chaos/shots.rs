//! Sends signals, but only to processes that a campaign has started.

use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Kills a process of this job. Returns false if no process of the job has this id, for example after its end.
pub(crate) fn shoot(pid: u32, job: &str) -> bool {
    send(Signal::KILL, pid, job)
}

/// Sends a signal to a process of this job. Returns false if no process of the job has this id.
pub(crate) fn send(signal: Signal, pid: u32, job: &str) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // The pidfd refers to the same process for the check and for the signal, even if another process gets its id.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_ours = command.split(|byte| *byte == 0).any(|argument| argument == job.as_bytes());
    is_ours && pidfd_send_signal(process, signal).is_ok()
}
