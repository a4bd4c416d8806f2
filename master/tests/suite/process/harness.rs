//! A master as a child process, in folders of its own.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;
use testkit::chaos::{STRIKE_VARIABLE, Strike};

const DEADLINE: Duration = Duration::from_secs(60);

/// One of the programs beside the tests.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    let program = test.parent().and_then(Path::parent).expect("it lies in target/debug/deps").join(name);
    assert!(program.is_file(), "there is no {}: run `cargo build --workspace` first", program.display());
    program
}

/// The folders of a test: one to keep state in, one with an exec.py.
pub(crate) struct Folders {
    pub(crate) state: TempDir,
    pub(crate) work: TempDir,
}

impl Folders {
    pub(crate) fn new(exec_py: &str) -> Self {
        let folders = Self::without_exec_py();
        std::fs::write(folders.work.path().join("exec.py"), exec_py).expect("write exec.py");
        folders
    }

    pub(crate) fn without_exec_py() -> Self {
        Self { state: tempfile::tempdir().expect("a folder"), work: tempfile::tempdir().expect("a folder") }
    }

    /// A master's command line in these folders, to which more can be added.
    pub(crate) fn command(&self) -> Command {
        self.command_of("master")
    }

    fn command_of(&self, program: &str) -> Command {
        let mut command = Command::new(built(program));
        command.current_dir(self.work.path()).arg("--state-dir").arg(self.state.path());
        command.arg("--agent-binary").arg(built("agent"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A master that serves on a free port.
    pub(crate) fn master(&self) -> Master {
        Self::serving(&mut self.command()).expect("it lives")
    }

    /// The same, started by a shell that sets limits before.
    pub(crate) fn limited_master(&self, limits: &str) -> Master {
        let command = self.command();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{limits} && exec \"$@\""), "sh"]);
        shell.arg(command.get_program()).args(command.get_args()).current_dir(self.work.path());
        shell.stdin(Stdio::null()).stdout(Stdio::piped());
        Self::serving(&mut shell).expect("it lives")
    }

    /// The same, and it is struck like this; or by which signal it has ended before it served.
    pub(crate) fn struck_master(&self, strike: &Strike) -> Result<Master, Option<i32>> {
        Self::serving(self.command_of("chaos-master").env(STRIKE_VARIABLE, strike.to_string()))
    }

    fn serving(command: &mut Command) -> Result<Master, Option<i32>> {
        let mut child = command.args(["--listen", "127.0.0.1:0"]).stderr(Stdio::null()).spawn().expect("spawn");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was piped");
        BufReader::new(stdout).read_line(&mut line).expect("its first line");
        if line.is_empty() {
            return Err(child.wait().expect("it is ours").signal());
        }
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("it says {line:?}")).to_owned();
        Ok(Master { child, url })
    }
}

/// A master that runs; it is killed with this value.
pub(crate) struct Master {
    child: Child,
    url: String,
}

impl Drop for Master {
    fn drop(&mut self) {
        // It may have been killed by the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Master {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended, and says by which signal.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().expect("it is ours").signal()
    }

    /// What it answers, if it lives.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> Option<(u16, Value)> {
        let answer = client().request(method, format!("{}{path}", self.url)).json(body).send().await.ok()?;
        Some((answer.status().as_u16(), answer.json().await.unwrap_or_default()))
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is ours");
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let answer = client().get(format!("{}{path}", self.url)).send().await.expect("the master answers");
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    }

    pub(crate) async fn submit(&self, job: &Value) -> (u16, Value) {
        let answer = client().post(format!("{}/v1/jobs", self.url)).json(job).send().await.expect("the master answers");
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    }

    /// Waits, by long polls, until the job is as `test` wants it.
    pub(crate) async fn until(&self, job: &str, test: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        let mut seq = 0;
        loop {
            let (status, view) = self.get(&format!("/v1/jobs/{job}?after={seq}&wait=5")).await;
            if status == 200 && test(&view) {
                return view;
            }
            assert!(begin.elapsed() < DEADLINE, "it does not come to that: {status} {view:#}");
            seq = view["seq"].as_u64().unwrap_or(0);
        }
    }
}

fn client() -> reqwest::Client {
    // The crate `client` asks reqwest for TLS, and a workspace's features are everyone's. A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().expect("a client without TLS")
}

/// Runs a master that must not come to serve, and returns its exit code and what it said on stderr.
pub(crate) fn run_to_its_end(command: &mut Command) -> (Option<i32>, String) {
    let mut child = command.spawn().expect("spawn");
    let begin = Instant::now();
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            break status;
        }
        if begin.elapsed() > DEADLINE {
            let _ = child.kill();
            panic!("it serves, and must not");
        }
        std::thread::yield_now();
    };
    let mut said = String::new();
    child.stderr.take().expect("it was piped").read_to_string(&mut said).expect("it is text");
    (status.code(), said)
}

/// Waits until that is so.
pub(crate) fn in_time(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < DEADLINE, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// The children of a process, and theirs, by /proc.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = processes().into_iter().filter_map(|id| Some((id, parent(id)?))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(id) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == id).map(|(child, _)| *child));
        next += 1;
    }
    found.split_off(1)
}

fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("this is Linux").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The state and the parent of a process: the fields behind its name, which may hold anything (proc(5)).
fn stat(id: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Who started a process.
pub(crate) fn parent(id: u32) -> Option<u32> {
    stat(id).map(|(_, parent)| parent)
}

/// What a process was started with, for those that still run.
fn command_line(id: u32) -> Option<String> {
    let (state, _) = stat(id)?;
    let text = std::fs::read_to_string(format!("/proc/{id}/cmdline")).ok()?;
    (state != "Z").then(|| text.replace('\0', " "))
}

/// Waits until none of these processes runs; a zombie does not.
pub(crate) fn wait_until_dead(processes: &[u32]) {
    let begin = Instant::now();
    loop {
        let alive: Vec<String> = processes.iter().filter_map(|id| command_line(*id)).collect();
        if alive.is_empty() {
            return;
        }
        assert!(begin.elapsed() < DEADLINE, "these live on: {alive:#?}");
        std::thread::yield_now();
    }
}
