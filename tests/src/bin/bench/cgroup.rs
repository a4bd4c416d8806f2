//! Limits the CPU time of processes with cgroups of version 1 or 2. This works only on a machine with writable cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The period of the limits.
const PERIOD: Duration = Duration::from_millis(20);
/// Maximum time until killed processes have ended.
const END: Duration = Duration::from_secs(10);
const V1: &str = "/sys/fs/cgroup/cpu";
const V2: &str = "/sys/fs/cgroup";

/// A group of processes which together get limited CPU time. Dropping this waits until its processes have ended, and
/// deletes the group.
#[derive(Debug)]
pub(crate) struct Limited {
    path: PathBuf,
}

impl Limited {
    /// Creates a group. Its processes get `share` of one CPU, with the highest priority, so that other programs on this
    /// machine take little of this share.
    ///
    /// # Errors
    /// If this machine has no cgroups for CPU time, or if they are not writable.
    pub(crate) fn new(name: &str, share: f64) -> anyhow::Result<Self> {
        let name = format!("muster-bench-{}-{name}", std::process::id());
        let (period, quota) = (PERIOD.as_micros(), PERIOD.mul_f64(share).as_micros());
        if Path::new(V1).is_dir() {
            let group = Self::created(Path::new(V1).join(name))?;
            group.write("cpu.cfs_period_us", &period.to_string())?;
            group.write("cpu.cfs_quota_us", &quota.to_string())?;
            group.write("cpu.shares", "262144")?;
            return Ok(group);
        }
        let controllers = fs::read_to_string(Path::new(V2).join("cgroup.controllers")).context("no cgroups")?;
        if !controllers.split_whitespace().any(|controller| controller == "cpu") {
            bail!("the cgroups of this machine do not limit CPU time");
        }
        fs::write(Path::new(V2).join("cgroup.subtree_control"), "+cpu").context("cgroups are not writable")?;
        let group = Self::created(Path::new(V2).join(name))?;
        group.write("cpu.max", &format!("{quota} {period}"))?;
        group.write("cpu.weight", "10000")?;
        Ok(group)
    }

    fn created(path: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir(&path).with_context(|| format!("cannot create the cgroup {}", path.display()))?;
        Ok(Self { path })
    }

    /// Moves a process with all its threads into the group. Its later children begin in the group.
    pub(crate) fn add(&self, pid: u32) -> anyhow::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {text} to {}", path.display()))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let begin = Instant::now();
        while fs::remove_dir(&self.path).is_err() && begin.elapsed() < END {
            thread::sleep(Duration::from_millis(20));
        }
    }
}
