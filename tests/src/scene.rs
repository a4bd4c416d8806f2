//! A folder with an exec.py, and the programs run in it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use protocol::view::JobView;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::processes::{output, pids, signal, within, working_in};
use crate::programs::{built, root};

/// A folder of its own for one test. Its processes must be gone when it is.
#[derive(Debug)]
pub struct Scene {
    path: PathBuf,
    _dir: TempDir,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it printed on stdout; invalid UTF-8 replaced.
    pub stdout: String,
    /// What it printed on stderr.
    pub stderr: String,
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

    /// Waits until so many processes of exec.py run here.
    pub fn until_running(&self, count: usize) {
        let running = || self.runs().len() >= count && self.path.join("ready").exists();
        within("exec.py runs", || running().then_some(()), || self.processes());
    }

    /// The ids of the processes that are exec.py itself; agents, too, have its name in their command lines.
    pub fn runs(&self) -> Vec<u32> {
        pids(&self.path, ": python exec.py")
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

    /// The same, with these variables in its environment.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn master_with(&self, variables: &[(&str, &str)]) -> Master {
        let mut child = Command::new(built("master"))
            .args(["--listen", "127.0.0.1:0", "--state-dir", "state"])
            .current_dir(&self.path)
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::options().create(true).append(true).open(self.path.join("master.log")).expect("its log"))
            .spawn()
            .expect("the master starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was piped");
        BufReader::new(stdout).read_line(&mut line).expect("the master says its address");
        let url = line.trim().strip_prefix("listening on ").expect("the first line names the address").to_owned();
        Master { child, url }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for pid in pids(&self.path, "") {
            signal(pid, Signal::KILL);
        }
    }
}

impl Finished {
    /// A program, run to its end.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn of(program: &mut Command) -> Self {
        Self::after(program.spawn().expect("the program starts"))
    }

    /// A program that runs, when it has ended.
    pub fn after(child: Child) -> Self {
        let Output { status, stdout, stderr } = output(child);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { status, stdout: text(stdout), stderr: text(stderr) }
    }

    /// Asserts the exit code.
    ///
    /// # Panics
    /// With all that was printed, when it is another.
    #[track_caller]
    pub fn code(self, expected: i32) -> Self {
        assert_eq!(self.status.code(), Some(expected), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// The rest of each line of stdout that begins with `prefix` behind its replica's name.
    pub fn lines(&self, prefix: &str) -> Vec<String> {
        let behind_name = self.stdout.lines().filter_map(|line| line.split_once("│ "));
        behind_name.filter_map(|(_, text)| text.strip_prefix(prefix)).map(str::to_owned).collect()
    }

    /// The job's view, for a client that was asked for JSON.
    ///
    /// # Panics
    /// When stdout is none.
    pub fn view(&self) -> JobView {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

/// A master that runs until it is dropped.
#[derive(Debug)]
pub struct Master {
    child: Child,
    /// Where it serves.
    pub url: String,
}

impl Master {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with `kill -9`.
    ///
    /// # Panics
    /// When it has ended before.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        // It may have been killed by its test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
