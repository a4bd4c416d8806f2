//! A master as a child process, with temporary folders.

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

/// The path of a program that this workspace builds.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    let program = test.parent().and_then(Path::parent).expect("the test is in target/debug/deps").join(name);
    assert!(program.is_file(), "there is no {}: run `cargo build --workspace` first", program.display());
    program
}

/// The temporary folders of a test: a state directory, and a work directory with an exec.py.
pub(crate) struct Folders {
    pub(crate) state: TempDir,
    pub(crate) work: TempDir,
}

impl Folders {
    pub(crate) fn new(exec_py: &str) -> Self {
        let folders = Self::without_exec_py();
        std::fs::write(folders.work.path().join("exec.py"), exec_py).expect("cannot write exec.py");
        folders
    }

    pub(crate) fn without_exec_py() -> Self {
        Self { state: tempfile::tempdir().expect("no folder"), work: tempfile::tempdir().expect("no folder") }
    }

    /// The command of a master with these folders. Tests can add arguments.
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
        Self::serving(&mut self.command()).expect("the master has died before it served")
    }

    /// Like [`Self::master`], but started by a shell that first runs the command `limits`.
    pub(crate) fn limited_master(&self, limits: &str) -> Master {
        let command = self.command();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{limits} && exec \"$@\""), "sh"]);
        shell.arg(command.get_program()).args(command.get_args()).current_dir(self.work.path());
        Self::serving(&mut shell).expect("the master has died before it served")
    }

    /// A master with an injected fault. If the master dies before it serves, the error is the signal that ended it.
    pub(crate) fn struck_master(&self, strike: &Strike) -> Result<Master, Option<i32>> {
        Self::serving(self.command_of("chaos-master").env(STRIKE_VARIABLE, strike.to_string()))
    }

    /// Starts this master. If the master dies before it serves, the error is the signal that ended it.
    pub(crate) fn serving(command: &mut Command) -> Result<Master, Option<i32>> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.args(["--listen", "127.0.0.1:0"]).spawn().expect("cannot start the program");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("no pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the master's first line cannot be read");
        if line.is_empty() {
            return Err(child.wait().expect("cannot wait for the program").signal());
        }
        let url = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap_or_else(|| panic!("the master's first line has no address: {line:?}"))
            .to_owned();
        Ok(Master { child, url })
    }
}

/// A running master. Dropping this value kills the master.
pub(crate) struct Master {
    child: Child,
    url: String,
}

impl Drop for Master {
    fn drop(&mut self) {
        // The test may already have killed the master.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Master {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the master has ended, and returns the signal that ended it.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().expect("cannot wait for the program").signal()
    }

    /// Sends a request. Returns the answer, or `None` if the master has died.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: impl Into<Sent>) -> Option<(u16, Value)> {
        let request = client().request(method, format!("{}{path}", self.url));
        let request = match body.into() {
            Sent::Nothing => request,
            Sent::Json(value) => request.json(&value),
            Sent::Bytes(bytes) => request.body(bytes),
        };
        let answer = request.send().await.ok()?;
        Some((answer.status().as_u16(), answer.json().await.unwrap_or_default()))
    }

    /// Kills the master, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("cannot kill the master");
        self.child.wait().expect("cannot wait for the program");
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let answer = client().get(format!("{}{path}", self.url)).send().await.expect("the master does not answer");
        (answer.status().as_u16(), answer.json().await.expect("not JSON"))
    }

    pub(crate) async fn submit(&self, job: &Value) -> (u16, Value) {
        let answer =
            client().post(format!("{}/v1/jobs", self.url)).json(job).send().await.expect("the master does not answer");
        (answer.status().as_u16(), answer.json().await.expect("not JSON"))
    }

    /// Waits by long polls until `test` accepts the view of the job.
    pub(crate) async fn until(&self, job: &str, test: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        let mut seq = 0;
        loop {
            let (status, view) = self.get(&format!("/v1/jobs/{job}?after={seq}&wait=5")).await;
            if status == 200 && test(&view) {
                return view;
            }
            assert!(begin.elapsed() < DEADLINE, "the expected view did not come: {status} {view:#}");
            seq = view["seq"].as_u64().unwrap_or(0);
        }
    }
}

/// The body of a request.
pub(crate) enum Sent {
    Nothing,
    Json(Value),
    Bytes(Vec<u8>),
}

impl From<()> for Sent {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

impl From<&Value> for Sent {
    fn from(value: &Value) -> Self {
        Self::Json(value.clone())
    }
}

impl From<Vec<u8>> for Sent {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

fn client() -> reqwest::Client {
    // The crate `client` enables TLS in reqwest for the whole workspace, so every HTTP client needs a crypto provider.
    // Installing it a second time has no effect.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().expect("no client")
}

/// Runs a master that must refuse to start, and returns its exit code and its stderr.
pub(crate) fn run_to_its_end(command: &mut Command) -> (Option<i32>, String) {
    let mut child = command.spawn().expect("cannot start the program");
    let begin = Instant::now();
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait().expect("cannot wait for the program") {
            break status;
        }
        if begin.elapsed() > DEADLINE {
            let _ = child.kill();
            panic!("the master did not refuse to start");
        }
        std::thread::yield_now();
    };
    let mut said = String::new();
    child.stderr.take().expect("no pipe").read_to_string(&mut said).expect("no text on stderr");
    (status.code(), said)
}

/// Waits until `is_so` returns true. `what` describes the condition.
pub(crate) fn in_time(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < DEADLINE, "this did not happen in time: {what}");
        std::thread::yield_now();
    }
}

/// All descendants of a process, read from /proc.
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

/// The state and the parent of a process. Both fields follow the process's name in parentheses. The name may contain
/// any character, even `)`: see proc(5).
fn stat(id: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

pub(crate) fn parent(id: u32) -> Option<u32> {
    stat(id).map(|(_, parent)| parent)
}

/// The command line of a process, or `None` if it has ended or is a zombie.
fn command_line(id: u32) -> Option<String> {
    let (state, _) = stat(id)?;
    let text = std::fs::read_to_string(format!("/proc/{id}/cmdline")).ok()?;
    (state != "Z").then(|| text.replace('\0', " "))
}

/// Whether a process has ended or is a zombie.
pub(crate) fn is_dead(id: u32) -> bool {
    command_line(id).is_none()
}
