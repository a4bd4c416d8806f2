//! A temporary folder with an exec.py, in which a test runs programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::client::Finished;
use crate::master::Master;
use crate::processes::{pids, signal, within, working_in};
use crate::programs::{built, root};

/// A folder of one test. Dropping this kills the processes that still run in the folder, and deletes the folder.
#[derive(Debug)]
pub struct Scene {
    path: PathBuf,
    _dir: TempDir,
}

impl Scene {
    /// Creates a folder with this exec.py.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn new(exec_py: &str) -> Self {
        let dir = tempfile::tempdir().expect("cannot create a temporary folder");
        let path = dir.path().canonicalize().expect("the folder does not exist");
        fs::write(path.join("exec.py"), exec_py).expect("cannot write exec.py");
        Self { path, _dir: dir }
    }

    /// Creates a folder with the files of an example.
    ///
    /// # Panics
    /// If the example does not exist.
    pub fn of_example(name: &str) -> Self {
        let scene = Self::new("");
        for entry in fs::read_dir(root().join("examples").join(name)).expect("cannot read the example") {
            let entry = entry.expect("cannot read the example's files");
            fs::copy(entry.path(), scene.path.join(entry.file_name())).expect("cannot copy the example");
        }
        scene
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs the client with these arguments in the folder. The command's environment names no
    /// master. The client finds only local masters of this scene.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut command = Command::new(built("client"));
        command.args(args).current_dir(&self.path).env_remove("MUSTER_MASTER").env_remove("MUSTER_TOKEN");
        command.env("XDG_RUNTIME_DIR", self.path.join("runtime")).env("XDG_STATE_HOME", self.path.join("state-home"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the client to its end.
    ///
    /// # Panics
    /// If the client cannot be started, or does not end before the deadline.
    pub fn run(&self, args: &[&str]) -> Finished {
        Finished::of(&mut self.client(args))
    }

    /// Runs `curl -s` with these arguments and returns its stdout.
    ///
    /// # Panics
    /// If curl is not installed.
    pub fn curl(&self, args: &[&str]) -> String {
        let output =
            Command::new("curl").arg("-s").args(args).current_dir(&self.path).output().expect("cannot start curl");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the process ids of exec.py. Excludes agents, although their command lines also contain `exec.py`.
    pub fn runs(&self) -> Vec<u32> {
        // Matches `python exec.py` and `/opt/python/bin/python3.12 exec.py`.
        let is_python = |line: &&String| {
            let program = line.split(' ').nth(1).and_then(|program| program.rsplit('/').next());
            program.is_some_and(|name| name.starts_with("python")) && line.contains(" exec.py")
        };
        working_in(&self.path)
            .iter()
            .filter(is_python)
            .filter_map(|line| line.split(':').next()?.parse().ok())
            .collect()
    }

    /// Waits until no process runs in the folder.
    pub fn until_empty(&self) {
        within("no process is left behind", || working_in(&self.path).is_empty().then_some(()), || self.processes());
    }

    /// Asserts that no process runs in the folder now.
    ///
    /// # Panics
    /// If a process runs. The message lists the processes.
    pub fn assert_empty(&self) {
        assert_eq!(working_in(&self.path), Vec::<String>::new(), "processes are left behind");
    }

    /// Returns the processes in the folder, one per line.
    pub fn processes(&self) -> String {
        working_in(&self.path).join("\n")
    }

    /// Starts a permanent master with its state in the folder.
    ///
    /// # Panics
    /// If the master ends before it serves.
    pub fn master(&self) -> Master {
        self.master_with(&[])
    }

    /// Like [`Self::master`], but the master has these variables in its environment.
    ///
    /// # Panics
    /// If the master ends before it serves.
    pub fn master_with(&self, variables: &[(&str, &str)]) -> Master {
        Master::start(&self.path, &["--state-dir", "state"], variables)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for pid in pids(&self.path, "") {
            signal(pid, Signal::KILL);
        }
    }
}
