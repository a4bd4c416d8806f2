//! A real agent as a child of the test, and a client for raw HTTP.

pub(crate) mod code;
pub(crate) mod warm;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use protocol::agent::{ExitOutcome, ExitReport, RunState, RunStatus};
use protocol::error::{ErrorCode, Problem};
use rustix::process::{Pid, Signal, kill_process};

/// How long a test waits for a condition before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// An agent. Dropping this value ends the agent.
pub(crate) struct Agent {
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) address: SocketAddr,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn problem(&self) -> Problem {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let problem: Problem = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem.status, self.status);
        problem
    }

    /// The status and the code of a refusal.
    pub(crate) fn refusal(&self) -> (u16, ErrorCode) {
        (self.status, self.problem().code)
    }

    pub(crate) fn number(&self, header: &str) -> u64 {
        self.headers[header].parse().unwrap()
    }
}

/// Runs the agent's program, which fails. Returns its exit code and its stderr.
pub(crate) fn failed(program: &mut Command) -> (Option<i32>, String) {
    let output = program.stderr(Stdio::piped()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

pub(crate) fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_agent"));
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    program
}

/// The program of a supervised agent at a free port.
pub(crate) fn supervised() -> Command {
    let mut program = program();
    program.args(["--supervised", "--listen", "127.0.0.1:0"]);
    program
}

impl Agent {
    /// A supervised agent whose runs are `sh -c script`.
    pub(crate) fn of_shell(script: &str) -> Self {
        Self::start(&[], &["sh", "-c", &script.replace('$', "$$")])
    }

    /// A supervised agent whose runs are `python3 -u -c script`.
    pub(crate) fn of_python(script: &str) -> Self {
        Self::start(&[], &["python3", "-u", "-c", script])
    }

    pub(crate) fn start(flags: &[&str], command: &[&str]) -> Self {
        let mut program = supervised();
        program.args(flags).arg("--").args(command);
        Self::from_program(program)
    }

    pub(crate) fn from_program(mut program: Command) -> Self {
        let mut child = program.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line
            .strip_suffix('\n')
            .expect("the agent ended before it printed a line")
            .parse()
            .expect("the agent's first line is no address");
        Self { stdin: child.stdin.take(), child, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Response {
        self.request_with("", method, path, body)
    }

    pub(crate) fn request_bytes(&self, method: &str, path: &str, body: &[u8]) -> Response {
        self.answered("", method, path, body)
    }

    /// Sends a request with additional header lines, and returns the answer. Each line ends with CRLF.
    pub(crate) fn request_with(&self, headers: &str, method: &str, path: &str, body: &str) -> Response {
        self.answered(headers, method, path, body.as_bytes())
    }

    fn answered(&self, headers: &str, method: &str, path: &str, body: &[u8]) -> Response {
        let mut stream = self.send_with(headers, method, path, body);
        let mut bytes = Vec::new();
        if let Err(error) = stream.read_to_end(&mut bytes) {
            // The agent does not read a body that it refuses. So its kernel resets the connection after the answer.
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{method} {path}");
        }
        parse_response(&bytes)
    }

    /// Sends a request. The caller reads the answer.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        self.send_with("", method, path, body.as_bytes())
    }

    pub(crate) fn send_with(&self, headers: &str, method: &str, path: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.request("GET", path, "")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Response {
        self.request("POST", path, body)
    }

    pub(crate) fn status(&self) -> RunStatus {
        serde_json::from_slice(&self.get("/status").body).unwrap()
    }

    /// Configures a run without variables, and starts it.
    pub(crate) fn go(&self) {
        self.go_with("{}");
    }

    /// Configures a run, and starts it.
    pub(crate) fn go_with(&self, config: &str) {
        assert_eq!(self.post("/config", config).status, 200);
        assert_eq!(self.get("/run").status, 200);
    }

    /// Requests the end of the agent, and returns its exit code.
    pub(crate) fn finish(&mut self) -> Option<i32> {
        assert_eq!(self.post("/finish", "").status, 200);
        self.wait_for_end().code()
    }

    pub(crate) fn wait_for(&self, state: RunState) -> RunStatus {
        let deadline = Instant::now() + PATIENCE;
        let mut status = self.status();
        while status.state != state {
            assert!(Instant::now() < deadline, "waited in vain for {state:?}; the status is {status:?}");
            let path = format!("/status?after={}&wait=1", status.seq);
            status = serde_json::from_slice(&self.get(&path).body).unwrap();
        }
        status
    }

    pub(crate) fn wait_for_exit(&self) -> ExitReport {
        self.wait_for(RunState::Exited).exit.expect("the exited run has no report")
    }

    /// Starts a run, waits for its end, and returns how it ended.
    pub(crate) fn outcome(&self) -> ExitOutcome {
        self.go();
        self.wait_for_exit().outcome
    }

    pub(crate) fn logs(&self, stream: &str) -> Vec<u8> {
        self.get(&format!("/logs?stream={stream}")).body
    }

    /// Waits until the run has printed `text`.
    pub(crate) fn wait_for_output(&self, text: &str) -> String {
        wait_until(&format!("output {text:?}"), || {
            let output = String::from_utf8_lossy(&self.logs("both")).into_owned();
            output.contains(text).then_some(output)
        })
    }

    /// The number after `name=` in the output.
    pub(crate) fn wait_for_pid(&self, name: &str) -> u32 {
        let key = format!("{name}=");
        wait_until(&format!("a line {key}"), || {
            let output = String::from_utf8_lossy(&self.logs("both")).into_owned();
            output.lines().find_map(|line| line.strip_prefix(&key)?.parse().ok())
        })
    }

    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        wait_until("the agent's end", || self.child.try_wait().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        match self.stdin.take() {
            // Closing stdin ends the agent and its run. SIGKILL would leave grandchildren behind.
            Some(stdin) => drop(stdin),
            // An agent that is not supervised, or an agent that has ended.
            None => drop(self.child.kill()),
        }
        let _ = self.child.wait();
    }
}

/// Starts an agent that is not supervised, and reads its address from its log. Also returns its stdout.
pub(crate) fn start_as_pod(args: &[&str]) -> (Agent, ChildStdout) {
    let mut program = program();
    let mut child = program.args(["--listen", "127.0.0.1:0"]).args(args).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address =
        lines.find_map(|line| line.unwrap().split_once("address=")?.1.split(' ').next()?.parse().ok()).unwrap();
    // Keep reading, or the agent's log blocks.
    thread::spawn(move || lines.for_each(drop));
    let stdout = child.stdout.take().unwrap();
    (Agent { stdin: None, child, address }, stdout)
}

pub(crate) fn parse_response(bytes: &[u8]) -> Response {
    let head_end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("the head of the answer is not complete") + 4;
    let head = std::str::from_utf8(&bytes[..head_end]).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: BTreeMap<String, String> =
        lines.filter_map(|line| line.split_once(": ")).map(|(k, v)| (k.to_ascii_lowercase(), v.to_owned())).collect();
    let chunked = headers.get("transfer-encoding").is_some_and(|v| v == "chunked");
    let body = if chunked { unchunk(&bytes[head_end..]) } else { bytes[head_end..].to_vec() };
    Response { status, headers, body }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = bytes.windows(2).position(|w| w == b"\r\n").expect("a chunk has no length");
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[line + 2..line + 2 + length]);
        bytes = &bytes[line + 4 + length..];
    }
}

/// Polls until `look` returns a value.
pub(crate) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// The state letter of a process (proc_pid_stat(5)), if it is on the process table.
pub(crate) fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}

pub(crate) fn wait_until_gone(pid: u32) {
    wait_until(&format!("the end of process {pid}"), || process_state(pid).is_none_or(|s| s == 'Z').then_some(()));
}

/// The processes whose parent is `parent`, zombies included.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rfind(')').and_then(|at| stat[at + 1..].split_whitespace().nth(1)?.parse().ok()) == Some(parent)
    })
    .collect()
}
