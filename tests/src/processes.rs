//! Finds, signals and waits for a test's processes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// Maximum time that a test waits for a condition.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// Waits until `look` returns a value.
///
/// # Panics
/// If the deadline passes. The message contains `what` and the text that `state` returns.
pub fn within<T>(what: &str, mut look: impl FnMut() -> Option<T>, state: impl Fn() -> String) -> T {
    let begin = Instant::now();
    loop {
        let look_began = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        let pause = pause_after(look_began.elapsed());
        assert!(begin.elapsed() < DEADLINE, "timeout after {DEADLINE:?}, waiting for: {what}\n{}", state());
        // Many conditions have no event to wait for, so poll.
        std::thread::sleep(pause);
    }
}

/// Returns the pause after a check that took this long. Without pauses, slow checks would occupy a processor.
pub fn pause_after(check: Duration) -> Duration {
    (check * 2).clamp(Duration::from_millis(10), Duration::from_secs(1))
}

/// Returns the processes with the working directory `dir`, as `pid: command line`. Zombies have no working directory.
pub fn working_in(dir: &Path) -> Vec<String> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let is_here = fs::read_link(entry.path().join("cwd")).ok()? == dir;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        (is_here && !command.is_empty()).then(|| format!("{pid}: {command}"))
    };
    all.filter_map(process).collect()
}

/// Returns the ids of the processes in `dir` for which `pid: command line` contains `part`.
pub fn pids(dir: &Path, part: &str) -> Vec<u32> {
    let of_line = |line: String| line.split(':').next().and_then(|pid| pid.parse().ok());
    working_in(dir).into_iter().filter(|line| line.contains(part)).filter_map(of_line).collect()
}

/// Returns the parent of a process, or `None` if the process has ended. The parent of an exec.py is its agent.
pub fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// Sends a signal to a process. Does nothing if the process has ended.
///
/// # Panics
/// If the signal cannot be sent.
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("the process id is too large")).expect("the process id is 0");
    match kill_process(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => panic!("cannot send a signal: {error}"),
    }
}

/// Returns a command that runs `command` through another program, such as `nohup`.
pub fn run_by(other: &[&str], command: &Command) -> Command {
    let mut running = Command::new(other[0]);
    running.args(&other[1..]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => running.env(name, value),
            None => running.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        running.current_dir(folder);
    }
    running
}
