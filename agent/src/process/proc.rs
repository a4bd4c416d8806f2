//! What the kernel shows of processes in `/proc` (proc_pid_stat(5), proc_pid_status(5)).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::param::page_size;
use rustix::process::Pid;

use crate::process::clock::clock;

/// The unit of times in `/proc`, on all machines that Muster supports (`USER_HZ`).
const TICK_MILLIS: u64 = 10;

/// The index of each field, counted from the field after the program's name.
const STATE: usize = 0;
const PARENT: usize = 1;
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const USER_TIME_OF_ENDED_CHILDREN: usize = 13;
const SYSTEM_TIME_OF_ENDED_CHILDREN: usize = 14;
const START: usize = 19;
const RESIDENT_PAGES: usize = 21;

/// What `/proc/PID/stat` shows of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The letter of the state of the main thread.
    pub(crate) state: char,
    pub(crate) parent: i32,
    /// Processor time of all threads.
    pub(crate) cpu: Duration,
    /// Processor time of child processes that have ended and are reaped.
    pub(crate) cpu_of_ended: Duration,
    /// When the process was forked, as the time since the machine's start.
    pub(crate) started: Duration,
    /// Resident memory. The kernel counts pages late: for each processor, some dozens may be missing.
    pub(crate) resident_bytes: u64,
}

/// The numbers of a process; `None` if it has ended meanwhile.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parsed(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parsed(stat: &[u8]) -> Option<Stat> {
    // The second field is the program's name in brackets. It may contain any character, even spaces and brackets.
    let behind_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields: Vec<&str> = str::from_utf8(&stat[behind_name..]).ok()?.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
    let time = |index: usize| {
        let ticks = u64::try_from(number(index)?).unwrap_or(0);
        Some(Duration::from_millis(ticks.saturating_mul(TICK_MILLIS)))
    };
    Some(Stat {
        state: fields.get(STATE)?.chars().next()?,
        parent: number(PARENT)?.try_into().ok()?,
        cpu: time(USER_TIME)? + time(SYSTEM_TIME)?,
        cpu_of_ended: time(USER_TIME_OF_ENDED_CHILDREN)? + time(SYSTEM_TIME_OF_ENDED_CHILDREN)?,
        started: time(START)?,
        resident_bytes: u64::try_from(number(RESIDENT_PAGES)?).unwrap_or(0).saturating_mul(page_size() as u64),
    })
}

/// All processes of this machine or container.
pub(crate) fn all() -> Vec<(i32, Stat)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter_map(|pid| Some((pid, stat(pid)?))).collect()
}

/// This process, and then all its descendants, the older ones first. Empty if the process has ended.
pub(crate) fn family(root: i32) -> Vec<(i32, Stat)> {
    let Some(stat) = stat(root) else { return Vec::new() };
    // A kernel without CONFIG_PROC_CHILDREN offers only the list of all processes, which takes longer to read.
    if Path::new("/proc/thread-self/children").exists() {
        return with_descendants((root, stat), children);
    }
    let all = all();
    with_descendants((root, stat), |parent| all.iter().filter(|(_, stat)| stat.parent == parent).copied().collect())
}

fn with_descendants(root: (i32, Stat), children: impl Fn(i32) -> Vec<(i32, Stat)>) -> Vec<(i32, Stat)> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some((parent, _)) = found.get(next).copied() {
        found.extend(children(parent));
        next += 1;
    }
    found[1..].sort_by_key(|(pid, stat)| (stat.started, *pid));
    // A child whose thread ends moves to the list of another thread, and may be read twice.
    found.dedup_by_key(|(pid, _)| *pid);
    found
}

/// The processes that the threads of this process have forked.
fn children(parent: i32) -> Vec<(i32, Stat)> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = |list: String| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>();
    // A number may belong to another process by now.
    let is_child = |(_, stat): &(i32, Stat)| stat.parent == parent;
    lists.flat_map(numbers).filter_map(|pid| Some((pid, stat(pid)?))).filter(is_child).collect()
}

impl Stat {
    /// The time since the process was forked.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(clock().0).saturating_sub(self.started)
    }
}

/// The value of a line of `/proc/PID/status`, such as `SigCgt`.
pub(crate) fn status_line<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The text of a file of a process; `None` if the process has ended, or if the agent may not read the file.
pub(crate) fn text(pid: i32, file: &str) -> Option<String> {
    fs::read(format!("/proc/{pid}/{file}")).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The path of a process's program.
pub(crate) fn program(pid: Pid) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use rustix::process::{Signal, kill_process};

    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = b"417 (a) b (c)) S 1 417 417 0 -1 4194560 100 200 0 0 150 50 7 3 20 0 9 0 12345 1 2 3\n";
        let expected = Stat {
            state: 'S',
            parent: 1,
            cpu: Duration::from_secs(2),
            cpu_of_ended: Duration::from_millis(100),
            started: Duration::from_millis(123_450),
            resident_bytes: 2 * page_size() as u64,
        };
        assert_eq!(parsed(line), Some(expected));
        assert_eq!(parsed(b"417 (a) S 1"), None);
        assert_eq!(parsed(b"417 a"), None);
    }

    #[test]
    fn a_family_has_all_descendants_and_nothing_else() {
        let of = |pid: i32, parent: i32| {
            let started = Duration::from_millis(u64::from(pid.unsigned_abs()));
            let none = Duration::ZERO;
            (pid, Stat { state: 'S', parent, cpu: none, cpu_of_ended: none, started, resident_bytes: 0 })
        };
        let all = [of(40, 10), of(30, 20), of(20, 10), of(11, 1), of(21, 11), of(12, 1)];
        let children = |parent| all.iter().filter(|(_, stat)| stat.parent == parent).copied().collect();
        let pids = |root| with_descendants(root, children).iter().map(|(pid, _)| *pid).collect::<Vec<_>>();
        assert_eq!(pids(of(10, 1)), [10, 20, 30, 40]);
        assert_eq!(pids(of(12, 1)), [12]);
    }

    #[test]
    fn the_family_of_a_process_is_found_in_the_files_of_its_threads() {
        let script = "sleep 60 & sh -c 'sleep 60 & echo ready; wait' & wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let root = i32::try_from(shell.id()).unwrap();
        let (found, all) = (family(root), all());
        let scanned = with_descendants(found[0], |parent| {
            all.iter().filter(|(_, stat)| stat.parent == parent).copied().collect()
        });
        // Parents first: a shell whose child has ended would end by itself.
        found.iter().filter_map(|(pid, _)| Pid::from_raw(*pid)).for_each(|pid| {
            kill_process(pid, Signal::KILL).unwrap();
        });
        shell.wait().unwrap();
        let pids = |family: &[(i32, Stat)]| family.iter().map(|(pid, _)| *pid).collect::<Vec<_>>();
        assert_eq!((line.as_str(), found.len(), found[0].0), ("ready\n", 4, root));
        assert_eq!(pids(&found), pids(&scanned));
        assert_eq!(family(root), []);
    }

    #[test]
    fn a_line_of_the_status_is_found_by_its_whole_name() {
        let status = "Name:\tx\nSigCgtX:\t1\nSigCgt:\t0000000000008000\nVmRSS:\t    1234 kB\n";
        assert_eq!(status_line(status, "SigCgt"), Some("0000000000008000"));
        assert_eq!(status_line(status, "VmRSS"), Some("1234 kB"));
        assert_eq!(status_line(status, "Sig"), None);
    }
}
