//! A disk of its own for a master's state directory, and faults of this disk. `unshare` creates a namespace in which the
//! folder is a small file system in memory, and `strace` makes system calls of the master fail.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::process::harness::Master;

/// Why the master cannot write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another process has filled the disk, and fills it again whenever space becomes free.
    Full,
    /// The master's files may not grow. Programs that the master starts meanwhile have the same limit.
    Limit,
    /// These system calls of the master fail.
    Calls(&'static str),
}

pub(crate) const WRITES: Fault = Fault::Calls("pwrite64");
pub(crate) const SYNCS: Fault = Fault::Calls("fsync,fdatasync,syncfs");
pub(crate) const FOLDERS: Fault = Fault::Calls("mkdir,mkdirat");
pub(crate) const RENAMES: Fault = Fault::Calls("rename,renameat,renameat2");

/// A file system in memory, which only processes in its namespace see. Dropping this value removes it.
pub(crate) struct Disk {
    /// Keeps the namespace.
    holder: Child,
    folder: PathBuf,
}

/// A fault in effect. It ends when this value is dropped.
pub(crate) enum Effect {
    /// The process that fills the disk until its stdin is closed.
    Filler(Child),
    Limited(u32),
    Tracer(Child),
}

impl Disk {
    /// Mounts a disk of 6 MiB over this folder.
    pub(crate) fn over(folder: &Path) -> Self {
        let mount = "mount -t tmpfs -o size=6m tmpfs \"$0\" && echo mounted && exec cat";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", mount]).arg(folder);
        let holder = said(&mut command, "mounted");
        Self { holder, folder: folder.to_owned() }
    }

    /// The command, run in the disk's namespace. Writes that exceed a limit fail, and do not end the program.
    pub(crate) fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["--user", "--mount", "--preserve-credentials", "--target", &self.holder.id().to_string()]);
        inside.args(["sh", "-c", "cd \"$0\" && trap '' XFSZ && exec \"$@\""]);
        inside.arg(command.get_current_dir().unwrap_or(&self.folder));
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    /// Begins a fault. Returns when it has effect.
    pub(crate) fn fails(&self, fault: Fault, master: &Master) -> Effect {
        match fault {
            Fault::Full => {
                let mut filler = Command::new("bash");
                filler.current_dir(&self.folder).args(["-c", FILLER]);
                Effect::Filler(said(&mut self.enter(&filler), "full"))
            }
            Fault::Limit => {
                limit(master.id(), Some(0));
                Effect::Limited(master.id())
            }
            Fault::Calls(calls) => {
                let mut tracer = Command::new("strace");
                // The master's threads are traced, but no programs that the master starts.
                tracer.args(["-f", "--detach-on=execve", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
                tracer.args(["-e", &format!("inject={calls}:error=ENOSPC"), "-p", &master.id().to_string()]);
                Effect::Tracer(attached(&mut tracer))
            }
        }
    }
}

/// Writes zeros to a file until stdin is closed, and then removes the file. `read` returns more than 128 after its timeout.
const FILLER: &str = "cat /dev/zero >>filler 2>/dev/null
echo full
while read -t 0.02; [ $? -gt 128 ]; do cat /dev/zero >>filler 2>/dev/null; done
rm filler";

/// Starts a program, and waits until its stdout begins with this line.
fn said(command: &mut Command, line: &str) -> Child {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cannot start the program");
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().expect("no pipe")).read_line(&mut first).expect("cannot read the first line");
    assert_eq!(first.trim(), line, "{command:?} has failed");
    child
}

fn attached(command: &mut Command) -> Child {
    let mut tracer = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("cannot start strace");
    let mut first = String::new();
    BufReader::new(tracer.stderr.as_mut().expect("no pipe")).read_line(&mut first).expect("cannot read the first line");
    assert!(first.contains("attached"), "{command:?} has failed: {first}");
    tracer
}

/// Limits the size of files that a process writes, in bytes.
fn limit(process: u32, bytes: Option<u64>) {
    let pid = Pid::from_raw(process.try_into().expect("not an id")).expect("no process");
    // The process may have been killed.
    let _ = prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None });
}

impl Drop for Effect {
    fn drop(&mut self) {
        match self {
            Self::Filler(filler) => {
                drop(filler.stdin.take());
                let _ = filler.wait();
            }
            Self::Limited(process) => limit(*process, None),
            Self::Tracer(tracer) => {
                let pid = Pid::from_raw(tracer.id().try_into().expect("not an id")).expect("no process");
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                let _ = tracer.wait();
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
