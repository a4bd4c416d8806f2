//! A folder with an exec.py, and the programs run in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::client::Finished;
use crate::master::Master;
use crate::processes::{pids, signal, within, working_in};
use crate::programs::{built, root};

/// A folder of its own for one test. Its processes must be gone when it is.
#[derive(Debug)]
pub struct Scene {
    path: PathBuf,
    _dir: TempDir,
}

impl Scene {
    /// A folder with this exec.py.
    ///
    /// # Panics
    /// When the folder cannot be written.
    pub fn new(exec_py: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().canonicalize().expect("it is there");
        fs::write(path.join("exec.py"), exec_py).expect("write exec.py");
        Self { path, _dir: dir }
    }

    /// A folder with the files of one of the examples.
    ///
    /// # Panics
    /// When there is no such example.
    pub fn of_example(name: &str) -> Self {
        let scene = Self::new("");
        for entry in fs::read_dir(root().join("examples").join(name)).expect("the example") {
            let entry = entry.expect("the example's files");
            fs::copy(entry.path(), scene.path.join(entry.file_name())).expect("copy the example");
        }
        scene
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The client with these arguments, in the folder, with no master in its environment.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut command = Command::new(built("client"));
        command.args(args).current_dir(&self.path).env_remove("MUSTER_MASTER").env_remove("MUSTER_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the client to its end.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run(&self, args: &[&str]) -> Finished {
        Finished::of(&mut self.client(args))
    }

    /// Runs `curl -s` with these arguments, and gives its stdout.
    ///
    /// # Panics
    /// When there is no curl.
    pub fn curl(&self, args: &[&str]) -> String {
        let output = Command::new("curl").arg("-s").args(args).current_dir(&self.path).output().expect("curl is there");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The ids of the processes that are exec.py itself; agents, too, have its name in their command lines.
    pub fn runs(&self) -> Vec<u32> {
        // However Python is installed: `python exec.py`, `/opt/python/bin/python3.12 exec.py`.
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

    /// Waits until no process is left in the folder.
    pub fn until_empty(&self) {
        within("nothing is left behind", || working_in(&self.path).is_empty().then_some(()), || self.processes());
    }

    /// Asserts that nothing is left now.
    ///
    /// # Panics
    /// With what is left.
    pub fn assert_empty(&self) {
        assert_eq!(working_in(&self.path), Vec::<String>::new(), "left behind");
    }

    /// What runs in the folder, a line each.
    pub fn processes(&self) -> String {
        working_in(&self.path).join("\n")
    }

    /// A master that stays, with its state in the folder.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn master(&self) -> Master {
        self.master_with(&[])
    }

    /// The same, with these arguments as well.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn master_in(&self, args: &[&str]) -> Master {
        Master::start(&self.path, &[["--state-dir", "state"].as_slice(), args].concat(), &[])
    }

    /// A master that stays, with these variables in its environment.
    ///
    /// # Panics
    /// When it does not come up.
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
